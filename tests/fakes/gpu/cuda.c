/* libcuda.so.1 for machines without a GPU: the calls of tests/gpu/client.py over the state folder of sim.h.
 *
 * Device memory is memory of the process that nobody touched yet, so pointers work and gigabytes cost nothing. The two
 * kernels of the client are known by name and done here. What is unknown of real hardware is a switch: see world.py.
 */
#define _GNU_SOURCE
#include "cuda.h"
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MAX_BLOCKS = 65536, HANDLE = 64 };
static const uint64_t TOUCHED = 1 << 16;

struct handle { char uuid[48]; uint32_t pid, word; uint64_t size; };
struct ipc { unsigned char bytes[HANDLE]; };
struct kernel { const char *name; };

static struct block blocks[MAX_BLOCKS];
static struct kernel kernels[] = {{"gemm"}, {"fault"}};
int begun;

#define DEVICE_CALL(device)                                                 \
    do {                                                                    \
        if (!begun) return NOT_INITIALIZED;                                 \
        if ((device) < 0 || (device) >= me.count) return INVALID_DEVICE;    \
    } while (0)

EXPORT cuInit(unsigned flags) {
    (void)flags;
    int error = sim_fault(__func__, NULL);
    if (error == 0) error = begun ? SUCCESS : process_begin();
    begun = error == 0;
    return error;
}

EXPORT cuDriverGetVersion(int *out) {
    struct machine machine;
    if (sim_load(&machine) != 0) return UNKNOWN;
    *out = machine.cuda;
    return SUCCESS;
}

EXPORT cuDeviceGetCount(int *out) {
    if (!begun) return NOT_INITIALIZED;
    *out = me.count;
    return SUCCESS;
}

EXPORT cuDeviceGet(int *out, int ordinal) { DEVICE_CALL(ordinal); *out = ordinal; return SUCCESS; }

EXPORT cuDeviceGetUuid_v2(unsigned char *out, int device) {
    int at = 0;
    unsigned byte;
    DEVICE_CALL(device);
    for (const char *text = me.visible[device]->uuid + 4; at < 16 && *text != 0; text += *text == '-' ? 1 : 2)
        if (*text != '-' && sscanf(text, "%2x", &byte) == 1) out[at++] = (unsigned char)byte;
    return SUCCESS;
}

EXPORT cuDeviceGetName(char *out, int room, int device) {
    DEVICE_CALL(device);
    snprintf(out, (size_t)room, "%s", me.visible[device]->name);
    return SUCCESS;
}

/* Supported counts go in steps of two, rounded down. */
static int sm_count(void) {
    int fixed = sim_world("sm_count", 0), all = fixed != 0 ? fixed : me.visible[0]->sms, some = all * me.percentage / 100 / 2 * 2;
    return !me.is_mps || me.percentage >= 100 ? all : some < 2 ? 2 : some;
}

EXPORT cuDeviceGetAttribute(int *out, int attribute, int device) {
    DEVICE_CALL(device);
    if (attribute != 16 && attribute != 75 && attribute != 76) return INVALID_VALUE;
    *out = attribute == 16 ? sm_count() : attribute == 75 ? me.visible[device]->major : me.visible[device]->minor_cc;
    return SUCCESS;
}

EXPORT cuDevicePrimaryCtxRetain(void **out, int device) {
    DEVICE_CALL(device);
    int error = sim_fault(__func__, me.visible[device]->uuid);
    if (error == 0 && me.gpu == NULL) error = process_enter(me.visible[device]);
    *out = &me;
    return error;
}

EXPORT cuCtxSetCurrent(void *context) { return context == &me ? SUCCESS : INVALID_CONTEXT; }

EXPORT cuDevicePrimaryCtxRelease_v2(int device) {
    DEVICE_CALL(device);
    process_leave();
    return SUCCESS;
}

/* A process that ends by itself says so; one that is killed does not get here. */
__attribute__((destructor)) static void end(void) {
    if (begun) process_leave();
}

EXPORT cuCtxSynchronize(void) {
    CONTEXT_CALL();
    pool_synchronized();
    return SUCCESS;
}

struct block *block_at(uint64_t pointer, uint64_t size) {
    for (int i = 0; i < MAX_BLOCKS; i++) {
        uint64_t at = (uint64_t)(uintptr_t)blocks[i].at;
        if (at != 0 && pointer >= at && size <= blocks[i].size && pointer - at <= blocks[i].size - size) return &blocks[i];
    }
    return NULL;
}

int block_add(char *at, uint64_t size, int sort) {
    struct block *block = blocks;
    while (block < blocks + MAX_BLOCKS && block->at != NULL) block++;
    if (block == blocks + MAX_BLOCKS) return OUT_OF_MEMORY;
    *block = (struct block){at, size, sort};
    return SUCCESS;
}

int block_make(uint64_t *out, uint64_t size, int sort) {
    void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) return OUT_OF_MEMORY;
    int error = block_add(at, size, sort);
    if (error != 0) munmap(at, size);
    *out = (uint64_t)(uintptr_t)at;
    return error;
}

static int take(uint64_t *out, uint64_t size, int sort) {
    if (out == NULL || size == 0) return INVALID_VALUE;
    int error = process_take(sort, size);
    if (error != 0) return error;
    error = block_make(out, size, sort);
    if (error != 0) process_give(sort, size);
    return error;
}

/* Of one of these sorts: memory is given back by the calls that go with the one it came from. */
static int give(uint64_t pointer, int sort, int or_sort) {
    struct block *block = block_at(pointer, 1);
    if (block == NULL || (uint64_t)(uintptr_t)block->at != pointer) return INVALID_VALUE;
    if (block->sort != sort && block->sort != or_sort) return INVALID_VALUE;
    process_give(block->sort, block->size);
    munmap(block->at, block->size);
    *block = (struct block){0};
    return SUCCESS;
}

EXPORT cuMemAlloc_v2(uint64_t *out, size_t size) { CONTEXT_CALL(); return take(out, size, PLAIN); }

EXPORT cuMemAllocManaged(uint64_t *out, size_t size, unsigned flags) {
    CONTEXT_CALL();
    return flags == 1 ? take(out, size, MANAGED) : INVALID_VALUE;
}

EXPORT cuMemFree_v2(uint64_t pointer) { CONTEXT_CALL(); return give(pointer, PLAIN, MANAGED); }

/* Needs no context: what a program knows of a card before it has one. */
EXPORT cuDeviceTotalMem_v2(size_t *out, int device) {
    DEVICE_CALL(device);
    *out = process_total(me.visible[device]) * MIB;
    return SUCCESS;
}

EXPORT cuMemGetInfo_v2(size_t *free, size_t *total) {
    uint64_t free_mib, total_mib;
    CONTEXT_CALL();
    process_memory(&free_mib, &total_mib);
    *free = free_mib * MIB;
    *total = total_mib * MIB;
    return SUCCESS;
}

/* Only the beginning is really written: the rest would take the host's memory, and nobody looks there. */
EXPORT cuMemsetD32_v2(uint64_t pointer, unsigned word, size_t count) {
    CONTEXT_CALL();
    if (block_at(pointer, count * 4) == NULL) return INVALID_VALUE;
    for (uint64_t i = 0; i < count && i < TOUCHED / 4; i++) memcpy((char *)(uintptr_t)pointer + 4 * i, &word, 4);
    return SUCCESS;
}

EXPORT cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t size) {
    CONTEXT_CALL();
    if (block_at(to, size) == NULL) return INVALID_VALUE;
    memcpy((void *)(uintptr_t)to, from, size);
    return SUCCESS;
}

EXPORT cuMemcpyDtoH_v2(void *to, uint64_t from, size_t size) {
    CONTEXT_CALL();
    if (block_at(from, size) == NULL) return INVALID_VALUE;
    memcpy(to, (void *)(uintptr_t)from, size);
    return SUCCESS;
}

EXPORT cuIpcGetMemHandle(struct ipc *out, uint64_t pointer) {
    struct handle handle = {.pid = me.pid};
    CONTEXT_CALL();
    struct block *block = block_at(pointer, 1);
    if (block == NULL || block->sort != PLAIN) return INVALID_VALUE;
    snprintf(handle.uuid, sizeof handle.uuid, "%.47s", me.gpu->uuid);
    memcpy(&handle.word, block->at, 4);
    handle.size = block->size;
    memset(out, 0, sizeof *out);
    memcpy(out, &handle, sizeof handle);
    return SUCCESS;
}

EXPORT cuIpcOpenMemHandle_v2(uint64_t *out, struct ipc ipc, unsigned flags) {
    struct handle handle;
    unsigned long long start;
    CONTEXT_CALL();
    memcpy(&handle, &ipc, sizeof handle);
    if (flags != 1 || strcmp(handle.uuid, me.gpu->uuid) != 0 || !sim_alive(handle.pid, &start)) return INVALID_VALUE;
    if (handle.pid == me.pid) return INVALID_CONTEXT;
    int error = take(out, handle.size, IMPORTED);
    if (error == 0) error = process_import(*out, handle.size, handle.pid, start);
    if (error == 0) memcpy((void *)(uintptr_t)*out, &handle.word, 4);
    return error;
}

EXPORT cuIpcCloseMemHandle(uint64_t pointer) {
    CONTEXT_CALL();
    struct block *block = block_at(pointer, 1);
    if (block == NULL || block->sort != IMPORTED) return INVALID_VALUE;
    process_import((uint64_t)(uintptr_t)block->at, 0, 0, 0);
    return give(pointer, IMPORTED, IMPORTED);
}

static const char *module;

EXPORT cuModuleLoadData(void **out, const char *image) {
    CONTEXT_CALL();
    if (strncmp(image, ".version ", 9) != 0) return INVALID_PTX;
    free((void *)(uintptr_t)module);
    module = strdup(image);
    *out = &module;
    return module == NULL ? OUT_OF_MEMORY : SUCCESS;
}

EXPORT cuModuleGetFunction(struct kernel **out, void *loaded, const char *name) {
    char entry[TEXT];
    CONTEXT_CALL();
    if (loaded != &module) return INVALID_HANDLE;
    snprintf(entry, sizeof entry, ".entry %s(", name);
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++)
        if (strcmp(kernels[i].name, name) == 0 && strstr(module, entry) != NULL) {
            *out = &kernels[i];
            return SUCCESS;
        }
    return NOT_FOUND;
}

static int gemm(void **parameters) {
    uint64_t at[3];
    uint32_t n, seed;
    for (int i = 0; i < 3; i++) memcpy(&at[i], parameters[i], sizeof at[i]);
    memcpy(&n, parameters[3], sizeof n);
    memcpy(&seed, parameters[4], sizeof seed);
    for (int i = 0; i < 3; i++)
        if (block_at(at[i], 4ULL * n * n) == NULL) return process_fault();
    const uint32_t *a = (void *)(uintptr_t)at[0], *b = (void *)(uintptr_t)at[1];
    uint32_t *c = (void *)(uintptr_t)at[2];
    memset(c, 0, 4ULL * n * n);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < n; k++)
            for (uint32_t j = 0, factor = a[i * n + k] + seed; j < n; j++) c[i * n + j] += factor * b[k * n + j];
    if (me.wrong) c[0] ^= 1;
    return SUCCESS;
}

/* Plain processes take turns; clients of MPS run side by side, if so here. */
EXPORT cuLaunchKernel(struct kernel *kernel, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                      unsigned shared, void *stream, void **parameters, void **extra) {
    (void)shared, (void)stream, (void)extra;
    CONTEXT_CALL();
    if (gx * gy * gz == 0 || bx * by * bz == 0 || bx * by * bz > 1024 || gy > 65535) return INVALID_VALUE;
    if (kernel == &kernels[1]) return process_fault() == 0 ? UNKNOWN : SUCCESS;
    int engine = sim_engine(me.gpu->uuid, me.is_mps && sim_world("mps_concurrent", 1));
    usleep((useconds_t)sim_world("kernel_us", 200));
    int error = gemm(parameters);
    sim_unlock(engine);
    process_ran_kernel();
    return error;
}

static const struct { int code; const char *name; } names[] = {
    {0, "CUDA_SUCCESS"}, {1, "CUDA_ERROR_INVALID_VALUE"}, {2, "CUDA_ERROR_OUT_OF_MEMORY"},
    {3, "CUDA_ERROR_NOT_INITIALIZED"}, {46, "CUDA_ERROR_DEVICE_UNAVAILABLE"}, {100, "CUDA_ERROR_NO_DEVICE"},
    {101, "CUDA_ERROR_INVALID_DEVICE"}, {201, "CUDA_ERROR_INVALID_CONTEXT"}, {218, "CUDA_ERROR_INVALID_PTX"},
    {400, "CUDA_ERROR_INVALID_HANDLE"}, {500, "CUDA_ERROR_NOT_FOUND"}, {700, "CUDA_ERROR_ILLEGAL_ADDRESS"},
    {719, "CUDA_ERROR_LAUNCH_FAILED"}, {800, "CUDA_ERROR_NOT_PERMITTED"}, {801, "CUDA_ERROR_NOT_SUPPORTED"},
    {805, "CUDA_ERROR_MPS_CONNECTION_FAILED"}, {806, "CUDA_ERROR_MPS_RPC_FAILURE"},
    {807, "CUDA_ERROR_MPS_SERVER_NOT_READY"}, {808, "CUDA_ERROR_MPS_MAX_CLIENTS_REACHED"},
    {809, "CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED"}, {810, "CUDA_ERROR_MPS_CLIENT_TERMINATED"},
    {999, "CUDA_ERROR_UNKNOWN"},
};

EXPORT cuGetErrorName(int error, const char **out) {
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i].code == error) {
            *out = names[i].name;
            return SUCCESS;
        }
    *out = NULL;
    return INVALID_VALUE;
}
