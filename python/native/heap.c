/* SPDX-License-Identifier: Apache-2.0
 * See heap.h.
 *
 * With oneDNN, TensorFlow's CPU allocator is a BFCAllocator: it takes few large regions by
 * BasicCPUAllocator::Alloc, cuts all tensors from 256 KiB on from them, and hardly ever gives one
 * back. Alloc asks tsl::port::AlignedMalloc, and Free gives to AlignedFree or AlignedSizedFree. These three are
 * exported, so libtensorflow_framework calls even its own through its global offset table, and there ours take
 * their place: calls from Alloc get a slab, and slabs go back to where they came from. Everything else
 * goes where it went. Nothing of TensorFlow's layout is relied on, and if any of the names is missing the
 * table is left alone.
 *
 * A tensor that lives here is an operand in place: nothing is copied through the kernel, and an allreduce
 * may go into the memory of its input. */
#include "python/native/heap.h"

#include "python/native/slab.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__x86_64__)
#define JUMP_SLOT R_X86_64_JUMP_SLOT
#define GLOB_DAT  R_X86_64_GLOB_DAT
#elif defined(__aarch64__)
#define JUMP_SLOT R_AARCH64_JUMP_SLOT
#define GLOB_DAT  R_AARCH64_GLOB_DAT
#else
#define JUMP_SLOT 0
#define GLOB_DAT  0
#endif

#define REGION_MIN ((size_t)1 << 20) /* the smallest that a BFCAllocator asks for */
#define ALIGN_MAX  ((size_t)4096)
#define SLOTS_MAX  8
#define ALLOC      "_ZN10tensorflow17BasicCPUAllocator5AllocEmmPm"

/* What is replaced: the table's entries for `name`, or for names that begin so: the alignment is an int or an
 * enum of that size, depending on the version, in the same register. */
enum { MALLOC, FREE, SIZED_FREE, HOOKS };
static struct hook {
    const char *name;
    void (*ours)(void);
    void (*theirs)(void);
    uintptr_t slots[SLOTS_MAX];
    int count;
} hooks[HOOKS];

static struct {
    uintptr_t begin, end; /* the code of ALLOC */
} caller;

static void *ask_theirs(size_t bytes, size_t alignment)
{
    void *(*theirs)(size_t, size_t);
    memcpy(&theirs, &hooks[MALLOC].theirs, sizeof(theirs));
    return theirs(bytes, alignment);
}

__attribute__((noinline)) static void *aligned_malloc(size_t bytes, size_t alignment)
{
    uintptr_t from = (uintptr_t)__builtin_return_address(0);
    bool region = from >= caller.begin && from < caller.end;
    void *slab = NULL;
    if (region && bytes >= REGION_MIN && alignment <= ALIGN_MAX)
        slab = slab_new(bytes);
    return slab ? slab : ask_theirs(bytes, alignment);
}

static void aligned_free(void *data)
{
    void (*theirs)(void *);
    if (slab_holds(data)) {
        slab_free(data);
        return;
    }
    memcpy(&theirs, &hooks[FREE].theirs, sizeof(theirs));
    theirs(data);
}

static void aligned_sized_free(void *data, size_t bytes, size_t alignment)
{
    void (*theirs)(void *, size_t, size_t);
    if (slab_holds(data)) {
        slab_free(data);
        return;
    }
    memcpy(&theirs, &hooks[SIZED_FREE].theirs, sizeof(theirs));
    theirs(data, bytes, alignment);
}

/* ---- the table ---- */

/* What the dynamic section of an object says. */
struct object {
    uintptr_t base;
    const ElfW(Sym) * symbols;
    const char *names;
    const ElfW(Rela) * relocations[2];
    size_t counts[2];
    uintptr_t relro_begin, relro_end; /* pages that are read-only once everything is in place */
};

static void read_dynamic(const ElfW(Dyn) * at, struct object *object)
{
    for (; at->d_tag != DT_NULL; at++) {
        const void *pointer = (const void *)at->d_un.d_ptr;
        switch (at->d_tag) {
        case DT_SYMTAB:
            object->symbols = pointer;
            break;
        case DT_STRTAB:
            object->names = pointer;
            break;
        case DT_JMPREL:
            object->relocations[0] = pointer;
            break;
        case DT_PLTRELSZ:
            object->counts[0] = at->d_un.d_val / sizeof(ElfW(Rela));
            break;
        case DT_RELA:
            object->relocations[1] = pointer;
            break;
        case DT_RELASZ:
            object->counts[1] = at->d_un.d_val / sizeof(ElfW(Rela));
            break;
        default:
            break;
        }
    }
}

/* For dl_iterate_phdr: stops at the object that has the code of ALLOC. */
static int find_object(struct dl_phdr_info *info, size_t size, void *user)
{
    struct object *object = user;
    bool here = false;
    (void)size;
    *object = (struct object){.base = info->dlpi_addr};
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        uintptr_t begin = info->dlpi_addr + part->p_vaddr;
        if (part->p_type == PT_LOAD)
            here |= caller.begin >= begin && caller.begin < begin + part->p_memsz;
        if (part->p_type == PT_DYNAMIC)
            read_dynamic((const ElfW(Dyn) *)begin, object);
        if (part->p_type == PT_GNU_RELRO) {
            object->relro_begin = begin;
            object->relro_end = begin + part->p_memsz;
        }
    }
    return here;
}

static void note(const char *name, uintptr_t slot)
{
    for (int i = 0; i < HOOKS; i++) {
        struct hook *hook = &hooks[i];
        if (strncmp(name, hook->name, strlen(hook->name)) != 0 || hook->count == SLOTS_MAX)
            continue;
        void *theirs = dlsym(RTLD_DEFAULT, name);
        memcpy(&hook->theirs, &theirs, sizeof(hook->theirs));
        if (theirs)
            hook->slots[hook->count++] = slot;
    }
}

static void find_slots(const struct object *object)
{
    for (int kind = 0; kind < 2; kind++) {
        for (size_t i = 0; i < object->counts[kind]; i++) {
            const ElfW(Rela) *at = &object->relocations[kind][i];
            unsigned type = ELF64_R_TYPE(at->r_info);
            const ElfW(Sym) *symbol = &object->symbols[ELF64_R_SYM(at->r_info)];
            if (type == JUMP_SLOT || type == GLOB_DAT)
                note(object->names + symbol->st_name, object->base + at->r_offset);
        }
    }
}

/* The page is made writable for the moment if the loader has closed it. */
static bool write_slot(const struct object *object, uintptr_t slot, void (*function)(void))
{
    uintptr_t page_bytes = (uintptr_t)sysconf(_SC_PAGESIZE);
    void *page = (void *)(slot & ~(page_bytes - 1));
    bool closed = slot >= object->relro_begin && slot < object->relro_end;
    if (closed && mprotect(page, page_bytes, PROT_READ | PROT_WRITE) != 0)
        return false;
    __atomic_store_n((uintptr_t *)slot, (uintptr_t)function, __ATOMIC_RELEASE);
    if (closed)
        mprotect(page, page_bytes, PROT_READ);
    return true;
}

/* The ways back before the way in, so that no slab meets the wrong free. */
static bool replace(const struct object *object)
{
    for (int i = HOOKS - 1; i >= 0; i--) {
        for (int k = 0; k < hooks[i].count; k++) {
            if (!write_slot(object, hooks[i].slots[k], hooks[i].ours))
                return false;
        }
    }
    return true;
}

static bool find_caller(void)
{
    Dl_info info;
    const ElfW(Sym) *symbol = NULL;
    void *address = dlsym(RTLD_DEFAULT, ALLOC);
    if (!address || !dladdr1(address, &info, (void **)&symbol, RTLD_DL_SYMENT) || !symbol)
        return false;
    caller.begin = (uintptr_t)address;
    caller.end = caller.begin + symbol->st_size;
    return true;
}

static bool hook(void)
{
    struct object object;
    hooks[MALLOC] = (struct hook){.name = "_ZN3tsl4port13AlignedMallocEm",
                                  .ours = (void (*)(void))aligned_malloc};
    hooks[FREE] =
        (struct hook){.name = "_ZN3tsl4port11AlignedFreeEPv", .ours = (void (*)(void))aligned_free};
    hooks[SIZED_FREE] = (struct hook){.name = "_ZN3tsl4port16AlignedSizedFreeEPvm",
                                      .ours = (void (*)(void))aligned_sized_free};
    if (!find_caller() || !dl_iterate_phdr(find_object, &object) || !object.symbols ||
        !object.names)
        return false;
    find_slots(&object);
    return hooks[MALLOC].count > 0 && hooks[FREE].count > 0 && replace(&object);
}

static bool hooked;

static void hook_once(void)
{
    hooked = hook();
}

bool hvd_tf_share_heap(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, hook_once);
    return hooked;
}
