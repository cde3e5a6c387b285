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
 * Before anything is changed, all of this is looked at: both functions have names, the code of each calls
 * through an entry of the table that is named as it should be, and that entry leads to a function of this
 * name. Otherwise the table is left alone. It is the code of x86-64 that is looked at; TensorFlow has no such
 * allocator elsewhere.
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

#define REGION_MIN ((size_t)1 << 20) /* the smallest that a BFCAllocator asks for */
#define ALIGN_MAX  ((size_t)4096)

/* A function of TensorFlow's, what it calls, and who is called instead. The alignment is an int or an enum of that
 * size, depending on the version, in the same register; so names go by their beginnings. */
struct hook {
    const char *caller;
    const char *callee;
    uintptr_t begin, end;     /* the caller's code */
    _Atomic(uintptr_t) *slot; /* the entry through which it calls */
    uintptr_t theirs;         /* what was there */
};

static struct hook take = {.caller = "_ZN10tensorflow17BasicCPUAllocator5AllocEmmPm",
                           .callee = "_ZN3tsl4port13AlignedMallocEm"};
static struct hook give = {.caller = "_ZN10tensorflow17BasicCPUAllocator4FreeEPvm",
                           .callee = "_ZN3tsl4port11AlignedFreeEPv"};

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

/* For dl_iterate_phdr: stops at the object that has the code of `take.caller`. */
static int find_object(struct dl_phdr_info *info, size_t size, void *user)
{
    struct object *object = user;
    bool here = false;
    (void)size;
    *object = (struct object){.base = info->dlpi_addr};
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        uintptr_t begin = info->dlpi_addr + part->p_vaddr, end = begin + part->p_memsz;
        if (part->p_type == PT_LOAD && take.begin >= begin && take.begin < end) {
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

static bool begins(const char *name, const char *beginning)
{
    return name && strncmp(name, beginning, strlen(beginning)) == 0;
}

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
           begins(info.dli_sname, hook->callee);
}

static bool find_slot(const struct object *object, struct hook *hook)
{
    for (int table = 0; table < 2; table++) {
        for (size_t i = 0; i < object->counts[table]; i++) {
            const ElfW(Rela) *at = &object->relocations[table][i];
            const ElfW(Sym) *symbol = &object->symbols[ELF64_R_SYM(at->r_info)];
            uintptr_t slot = object->base + at->r_offset;
            if (!is_slot(ELF64_R_TYPE(at->r_info)) ||
                !begins(object->names + symbol->st_name, hook->callee) ||
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

/* The way back before the way in, so that no slab meets the wrong free. */
static bool hook_both(void)
{
    struct object object;
    return find_code(&take) && find_code(&give) && dl_iterate_phdr(find_object, &object) &&
           find_slot(&object, &take) && find_slot(&object, &give) &&
           write_slot(&object, &give, (uintptr_t)aligned_free) &&
           write_slot(&object, &take, (uintptr_t)aligned_malloc);
}

static bool hooked;

static void hook_once(void)
{
    hooked = hook_both();
}

bool hvd_tf_share_heap(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, hook_once);
    return hooked;
}
