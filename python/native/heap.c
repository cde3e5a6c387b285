/* SPDX-License-Identifier: Apache-2.0
 * See heap.h.
 *
 * With oneDNN, TensorFlow's CPU allocator is a BFCAllocator: it takes few large regions by
 * BasicCPUAllocator::Alloc, cuts all tensors from 256 KiB on from them, and hardly ever gives one
 * back. Alloc asks tsl::port::AlignedMalloc, and Free gives to tsl::port::AlignedFree. Both are exported, so
 * libtensorflow_framework calls even its own through its global offset table, and there ours take their
 * place: calls from Alloc get a slab, and slabs go back to where they came from. Everything else goes where
 * it went.
 *
 * Before anything is changed, all of this is looked at: the version is one that the tests have run with, oneDNN is
 * on, both functions have the names of that version, the code of each calls through the entry of the table that has
 * the callee's name, and that entry leads to the function of this name. Otherwise the table is left alone. It is the
 * code of x86-64 that is looked at; TensorFlow has no such allocator elsewhere.
 *
 * The table then points into this library for the rest of the process, so the library is linked as one that
 * is never unloaded (-z nodelete).
 *
 * A tensor that lives here is an operand in place: nothing is copied through the kernel, and an allreduce
 * may go into the memory of its input. */
#include "python/native/heap.h"

#include "python/native/slab.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define REGION_MIN ((size_t)1 << 20) /* the smallest that a BFCAllocator asks for */
#define ALIGN_MAX  ((size_t)4096)

/* What the functions are called in a version that the tests have run with. Alignment is an int or an enum of that size, in
 * the same register. */
static const struct version {
    int major, minor;
    const char *alloc, *malloc; /* the first calls the second */
    const char *release, *free;
} versions[] = {
    {2, 15, "_ZN10tensorflow17BasicCPUAllocator5AllocEmmPm", "_ZN3tsl4port13AlignedMallocEmi",
     "_ZN10tensorflow17BasicCPUAllocator4FreeEPvm", "_ZN3tsl4port11AlignedFreeEPv"},
    {2, 21, "_ZN10tensorflow17BasicCPUAllocator5AllocEmmPm",
     "_ZN3tsl4port13AlignedMallocEmSt11align_val_t", "_ZN10tensorflow17BasicCPUAllocator4FreeEPvm",
     "_ZN3tsl4port11AlignedFreeEPv"},
};
#define VERSIONS  "2.15 and 2.21"
#define IS_ONEDNN "_ZN10tensorflow12IsMKLEnabledEv" /* bool tensorflow::IsMKLEnabled() */

#define UNTRIED "hvd was tried with the memory of TensorFlow " VERSIONS " only"
#define NO_REGIONS                                                                                 \
    "TensorFlow takes memory tensor by tensor here: oneDNN is off (TF_ENABLE_ONEDNN_OPTS=0) or "   \
    "this CPU has no AVX512_VNNI"
#define UNEXPECTED "the code of this TensorFlow is not that of the release that was tried"
#define REFUSED    "the kernel does not let its table of functions be changed"

/* A function of TensorFlow's, what it calls, and how. */
struct hook {
    const char *caller;
    const char *callee;
    uintptr_t begin, end;     /* the caller's code */
    _Atomic(uintptr_t) *slot; /* the entry through which it calls */
    uintptr_t theirs;         /* what was there */
};

/* Written once, before the entries lead here. */
static struct hook take, give;

__attribute__((noinline)) static void *aligned_malloc(size_t bytes, size_t alignment)
{
    uintptr_t from = (uintptr_t)__builtin_return_address(0);
    bool region = from >= take.begin && from < take.end;
    void *slab = NULL;
    if (region && bytes >= REGION_MIN && alignment <= ALIGN_MAX)
        slab = slab_new(bytes, SLAB_HEAP);
    return slab ? slab : ((void *(*)(size_t, size_t))take.theirs)(bytes, alignment);
}

static void aligned_free(void *data)
{
    if (!slab_free(data))
        ((void (*)(void *))give.theirs)(data);
}

/* ---- the object that has the callers ---- */

struct object {
    uintptr_t wanted;
    uintptr_t base, begin, end; /* of its code */
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

static uintptr_t page_bytes(void)
{
    return (uintptr_t)sysconf(_SC_PAGESIZE);
}

/* For dl_iterate_phdr: stops at the object that has the code at `wanted`. */
static int find_object(struct dl_phdr_info *info, size_t size, void *user)
{
    struct object *object = user;
    uintptr_t at = object->wanted;
    bool here = false;
    (void)size;
    *object = (struct object){.wanted = at, .base = info->dlpi_addr};
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        uintptr_t begin = info->dlpi_addr + part->p_vaddr, end = begin + part->p_memsz;
        if (part->p_type == PT_LOAD && at >= begin && at < end) {
            object->begin = begin;
            object->end = end;
            here = true;
        }
        if (part->p_type == PT_DYNAMIC)
            read_dynamic((const ElfW(Dyn) *)begin, object);
        if (part->p_type == PT_GNU_RELRO) { /* the loader closes whole pages */
            object->relro_begin = begin & ~(page_bytes() - 1);
            object->relro_end = end & ~(page_bytes() - 1);
        }
    }
    return here && object->symbols && object->names;
}

static bool find_code(struct hook *hook)
{
    Dl_info info;
    const ElfW(Sym) *symbol = NULL;
    void *address = dlsym(RTLD_DEFAULT, hook->caller);
    if (!address || !dladdr1(address, &info, (void **)&symbol, RTLD_DL_SYMENT) || !symbol)
        return false;
    hook->begin = (uintptr_t)address;
    hook->end = hook->begin + symbol->st_size;
    return true;
}

/* ---- the entry that a function calls through ---- */

#if defined(__x86_64__)

/* call +offset to a stub (endbr64) (bnd) jmp *offset(%rip). */
static uintptr_t slot_of_call(const struct object *object, const unsigned char *code)
{
    int32_t offset;
    if (code[0] != 0xe8)
        return 0;
    memcpy(&offset, code + 1, sizeof(offset));
    const unsigned char *stub = code + 5 + offset;
    if ((uintptr_t)stub < object->begin || (uintptr_t)stub > object->end - 16)
        return 0;
    if (memcmp(stub, "\xf3\x0f\x1e\xfa", 4) == 0)
        stub += 4;
    stub += stub[0] == 0xf2;
    if (stub[0] != 0xff || stub[1] != 0x25)
        return 0;
    memcpy(&offset, stub + 2, sizeof(offset));
    return (uintptr_t)stub + 6 + (uintptr_t)(intptr_t)offset;
}

static bool is_slot(unsigned long type)
{
    return type == R_X86_64_JUMP_SLOT || type == R_X86_64_GLOB_DAT;
}

#else

static uintptr_t slot_of_call(const struct object *object, const unsigned char *code)
{
    (void)object, (void)code;
    return 0;
}

static bool is_slot(unsigned long type)
{
    (void)type;
    return false;
}

#endif

static bool is_called(const struct object *object, const struct hook *hook, uintptr_t slot)
{
    for (uintptr_t at = hook->begin; at + 5 <= hook->end; at++) {
        if (slot_of_call(object, (const unsigned char *)at) == slot)
            return true;
    }
    return false;
}

/* The entry is in use and leads to the function that it is named for. */
static bool leads_there(const struct hook *hook, uintptr_t slot)
{
    Dl_info info;
    return dladdr(*(void **)slot, &info) != 0 && info.dli_saddr == *(void **)slot &&
           info.dli_sname && strcmp(info.dli_sname, hook->callee) == 0;
}

static bool find_slot(const struct object *object, struct hook *hook)
{
    for (int table = 0; table < 2; table++) {
        for (size_t i = 0; i < object->counts[table]; i++) {
            const ElfW(Rela) *at = &object->relocations[table][i];
            const ElfW(Sym) *symbol = &object->symbols[ELF64_R_SYM(at->r_info)];
            uintptr_t slot = object->base + at->r_offset;
            if (!is_slot(ELF64_R_TYPE(at->r_info)) ||
                strcmp(object->names + symbol->st_name, hook->callee) != 0 ||
                !is_called(object, hook, slot) || !leads_there(hook, slot))
                continue;
            hook->slot = (_Atomic(uintptr_t) *)slot;
            hook->theirs = *hook->slot;
            return true;
        }
    }
    return false;
}

/* The page is made writable for the moment if the loader has closed it. */
static bool write_slot(const struct object *object, const struct hook *hook, uintptr_t function)
{
    uintptr_t slot = (uintptr_t)hook->slot;
    void *page = (void *)(slot & ~(page_bytes() - 1));
    bool closed = slot >= object->relro_begin && slot < object->relro_end;
    if (closed && mprotect(page, page_bytes(), PROT_READ | PROT_WRITE) != 0)
        return false;
    *hook->slot = function;
    if (closed)
        mprotect(page, page_bytes(), PROT_READ);
    return true;
}

/* ---- whether, and doing it ---- */

static const struct version *version_of(int major, int minor)
{
    for (size_t i = 0; i < sizeof(versions) / sizeof(versions[0]); i++) {
        if (versions[i].major == major && versions[i].minor == minor)
            return &versions[i];
    }
    return NULL;
}

/* Whether TensorFlow's CPU allocator is the one that takes regions. TensorFlow decides it for good when it is first asked. */
static bool takes_regions(void)
{
    void *address = dlsym(RTLD_DEFAULT, IS_ONEDNN);
    bool (*is_onednn)(void);
    memcpy(&is_onednn, &address, sizeof(is_onednn));
    return is_onednn && is_onednn();
}

static const char *find(int major, int minor, struct object *object, struct hook *in,
                        struct hook *out)
{
    const struct version *version = version_of(major, minor);
    if (!version)
        return UNTRIED;
    if (!takes_regions())
        return NO_REGIONS;
    *in = (struct hook){.caller = version->alloc, .callee = version->malloc};
    *out = (struct hook){.caller = version->release, .callee = version->free};
    if (!find_code(in) || !find_code(out))
        return UNEXPECTED;
    object->wanted = in->begin;
    if (!dl_iterate_phdr(find_object, object) || !find_slot(object, in) || !find_slot(object, out))
        return UNEXPECTED;
    return NULL;
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool shared;

/* The way back before the way in, so that no slab meets the wrong free. With the lock. */
static const char *share(int major, int minor)
{
    struct object object;
    const char *obstacle = find(major, minor, &object, &take, &give);
    if (obstacle)
        return obstacle;
    if (!write_slot(&object, &give, (uintptr_t)aligned_free) ||
        !write_slot(&object, &take, (uintptr_t)aligned_malloc))
        return REFUSED;
    shared = true;
    return NULL;
}

const char *hvd_tf_share_heap(int major, int minor)
{
    pthread_mutex_lock(&lock);
    const char *obstacle = shared ? NULL : share(major, minor);
    pthread_mutex_unlock(&lock);
    return obstacle;
}

const char *hvd_tf_heap_obstacle(int major, int minor)
{
    struct object object;
    struct hook in, out;
    pthread_mutex_lock(&lock);
    const char *obstacle = shared ? NULL : find(major, minor, &object, &in, &out);
    pthread_mutex_unlock(&lock);
    return obstacle;
}

/* ---- what lies elsewhere ---- */

static _Atomic(void (*)(void)) tell_of_copies;
static atomic_int copies;

void hvd_tf_tell_of_copies(void (*tell)(void))
{
    atomic_store(&tell_of_copies, tell);
}

void heap_note_gradient(const void *data, size_t bytes)
{
    void (*tell)(void) = atomic_load(&tell_of_copies);
    if (bytes < HEAP_COPY_MIN || !tell ||
        atomic_load_explicit(&copies, memory_order_relaxed) >= HEAP_COPIES_TOLD ||
        slab_is_heap(data))
        return;
    if (atomic_fetch_add(&copies, 1) == HEAP_COPIES_TOLD - 1)
        tell();
}
