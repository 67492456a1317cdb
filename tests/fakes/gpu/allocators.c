/* Memory that does not come from cuMemAlloc: handles that are mapped (cuMemCreate, of which PyTorch makes its expandable
 * segments) and the device's stream-ordered pool (cuMemAllocAsync, cudaMallocAsync).
 *
 * As documented: a handle's memory is taken when it is made and is free again when it is released and mapped nowhere.
 * A pool gives what was freed back when the context is synchronised (its release threshold is 0 unless a program says
 * otherwise), and allocates from it before. Of neither can cuIpcGetMemHandle make a handle. Which limit counts them and
 * whose row shows them is documented nowhere: see world.py.
 */
#define _GNU_SOURCE
#include "cuda.h"
#include <string.h>
#include <sys/mman.h>

enum { MAX_HANDLES = 65536, PINNED = 1, ON_DEVICE = 1, READ_WRITE = 3, POSIX_DESCRIPTOR = 1 };
static const uint64_t GRANULE = 2 << 20;

struct location { int type, id; };
struct properties { int type, handle_types; struct location location; void *win32; unsigned char flags[8]; };
struct access { struct location location; int flags; };
/* Physical memory behind handle n + 1; `at`: where it is mapped. */
struct created { uint64_t size; char *at; int released; unsigned exported; };
struct range { char *at; uint64_t size; };

static struct created created[MAX_HANDLES];
static struct range ranges[MAX_HANDLES];
static uint64_t pool_used, pool_kept;

static int is_here(struct location location) {
    return location.type == ON_DEVICE && location.id >= 0 && location.id < me.count && me.visible[location.id] == me.gpu;
}

static int whole(uint64_t size) { return size != 0 && size % GRANULE == 0; }

EXPORT cuMemGetAllocationGranularity(size_t *out, const struct properties *wanted, int option) {
    CONTEXT_CALL();
    if (out == NULL || wanted->type != PINNED || (option != 0 && option != 1)) return INVALID_VALUE;
    *out = GRANULE;
    return SUCCESS;
}

EXPORT cuMemCreate(uint64_t *out, size_t size, const struct properties *wanted, unsigned long long flags) {
    struct created *free = created;
    CONTEXT_CALL();
    if (flags != 0 || !whole(size) || wanted->type != PINNED) return INVALID_VALUE;
    if (!is_here(wanted->location)) return INVALID_DEVICE;
    while (free < created + MAX_HANDLES && free->size != 0) free++;
    if (free == created + MAX_HANDLES) return OUT_OF_MEMORY;
    int error = process_take(CREATED, size);
    if (error != 0) return error;
    *free = (struct created){.size = size};
    *out = (uint64_t)(free - created) + 1;
    return SUCCESS;
}

static void end_of(struct created *memory) {
    if (!memory->released || memory->at != NULL) return;
    if (memory->exported != 0) sim_export_release(memory->exported);
    process_give(CREATED, memory->size);
    *memory = (struct created){0};
}

static struct created *named(uint64_t handle) {
    struct created *found = handle == 0 || handle > MAX_HANDLES ? NULL : &created[handle - 1];
    return found == NULL || found->size == 0 || found->released ? NULL : found;
}

EXPORT cuMemRelease(uint64_t handle) {
    CONTEXT_CALL();
    struct created *memory = named(handle);
    if (memory == NULL) return INVALID_VALUE;
    memory->released = 1;
    end_of(memory);
    return SUCCESS;
}

/* The descriptor is an open file that holds a lock: whoever gets a copy holds it too, with CUDA or without. */
EXPORT cuMemExportToShareableHandle(int *out, uint64_t handle, int type, unsigned long long flags) {
    CONTEXT_CALL();
    struct created *memory = named(handle);
    if (out == NULL || memory == NULL || type != POSIX_DESCRIPTOR || flags != 0) return INVALID_VALUE;
    *out = sim_export(me.gpu->uuid, memory->size / MIB, &memory->exported);
    return *out < 0 ? UNKNOWN : SUCCESS;
}

EXPORT cuMemAddressReserve(uint64_t *out, size_t size, size_t alignment, uint64_t wish, unsigned long long flags) {
    struct range *free = ranges;
    (void)wish;
    CONTEXT_CALL();
    if (flags != 0 || !whole(size) || (alignment & (alignment - 1)) != 0) return INVALID_VALUE;
    while (free < ranges + MAX_HANDLES && free->size != 0) free++;
    if (free == ranges + MAX_HANDLES) return OUT_OF_MEMORY;
    void *at = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) return OUT_OF_MEMORY;
    *free = (struct range){at, size};
    *out = (uint64_t)(uintptr_t)at;
    return SUCCESS;
}

static int inside(const char *at, uint64_t size, const char *whole_at, uint64_t whole_size) {
    return at >= whole_at && size <= whole_size && (uint64_t)(at - whole_at) <= whole_size - size;
}

/* What is mapped somewhere between two addresses, from `after` on; NULL where nothing is. */
static struct created *mapped(const char *at, uint64_t size, struct created *after) {
    for (struct created *each = after; each < created + MAX_HANDLES; each++)
        if (each->at != NULL && each->at < at + size && at < each->at + each->size) return each;
    return NULL;
}

EXPORT cuMemMap(uint64_t pointer, size_t size, size_t offset, uint64_t handle, unsigned long long flags) {
    char *at = (char *)(uintptr_t)pointer;
    CONTEXT_CALL();
    struct created *memory = named(handle);
    if (flags != 0 || offset != 0 || memory == NULL || memory->at != NULL || memory->size != size) return INVALID_VALUE;
    if (mapped(at, size, created) != NULL) return INVALID_VALUE;
    for (int i = 0; i < MAX_HANDLES; i++)
        if (ranges[i].size != 0 && inside(at, size, ranges[i].at, ranges[i].size)) {
            memory->at = at;
            return SUCCESS;
        }
    return INVALID_VALUE;
}

EXPORT cuMemSetAccess(uint64_t pointer, size_t size, const struct access *wanted, size_t count) {
    char *at = (char *)(uintptr_t)pointer;
    CONTEXT_CALL();
    struct created *each = mapped(at, size, created);
    if (count != 1 || !is_here(wanted->location) || wanted->flags != READ_WRITE || each == NULL) return INVALID_VALUE;
    for (; each != NULL; each = mapped(at, size, each + 1)) {
        if (block_at((uint64_t)(uintptr_t)each->at, 1) != NULL) continue;
        if (mprotect(each->at, each->size, PROT_READ | PROT_WRITE) != 0) return UNKNOWN;
        int error = block_add(each->at, each->size, CREATED);
        if (error != 0) return error;
    }
    return SUCCESS;
}

EXPORT cuMemUnmap(uint64_t pointer, size_t size) {
    char *at = (char *)(uintptr_t)pointer;
    CONTEXT_CALL();
    struct created *each = mapped(at, size, created);
    if (each == NULL) return INVALID_VALUE;
    for (; each != NULL; each = mapped(at, size, each + 1)) {
        struct block *block = block_at((uint64_t)(uintptr_t)each->at, 1);
        if (block != NULL) *block = (struct block){0};
        /* Mapped anew, it holds nothing of what was there. */
        mmap(each->at, each->size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
        each->at = NULL;
        end_of(each);
    }
    return SUCCESS;
}

EXPORT cuMemAddressFree(uint64_t pointer, size_t size) {
    char *at = (char *)(uintptr_t)pointer;
    CONTEXT_CALL();
    if (mapped(at, size, created) != NULL) return INVALID_VALUE;
    for (int i = 0; i < MAX_HANDLES; i++)
        if (ranges[i].at == at && ranges[i].size == size) {
            munmap(at, size);
            ranges[i] = (struct range){0};
            return SUCCESS;
        }
    return INVALID_VALUE;
}

EXPORT cuMemAllocAsync(uint64_t *out, size_t size, void *stream) {
    (void)stream;
    CONTEXT_CALL();
    if (out == NULL || size == 0) return INVALID_VALUE;
    uint64_t more = pool_used + size > pool_kept ? pool_used + size - pool_kept : 0;
    int error = process_take(POOLED, more);
    if (error != 0) return error;
    pool_kept += more;
    error = block_make(out, size, POOLED);
    if (error == 0) pool_used += size;
    return error;
}

EXPORT cuMemFreeAsync(uint64_t pointer, void *stream) {
    (void)stream;
    CONTEXT_CALL();
    struct block *block = block_at(pointer, 1);
    if (block == NULL || block->sort != POOLED || (uint64_t)(uintptr_t)block->at != pointer) return INVALID_VALUE;
    pool_used -= block->size;
    munmap(block->at, block->size);
    *block = (struct block){0};
    return SUCCESS;
}

void pool_synchronized(void) {
    if (pool_kept > pool_used) process_give(POOLED, pool_kept - pool_used);
    pool_kept = pool_used;
}
