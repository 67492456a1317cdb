/* What the parts of the fake libcuda.so.1 know of each other: cuda.c and allocators.c the calls, process.c what a process is. */
#ifndef FAKE_CUDA_H
#define FAKE_CUDA_H
#include "sim.h"

enum {
    SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, DEVICE_UNAVAILABLE = 46, NO_DEVICE = 100,
    INVALID_DEVICE = 101, INVALID_CONTEXT = 201, INVALID_PTX = 218, INVALID_HANDLE = 400, NOT_FOUND = 500,
    ILLEGAL_ADDRESS = 700, LAUNCH_FAILED = 719, MPS_CONNECTION_FAILED = 805, MPS_RPC_FAILURE = 806, UNKNOWN = 999
};
enum { MAX_IMPORTS = 256 };
/* By which calls memory came: cuMemAlloc, cuMemAllocManaged, cuIpcOpenMemHandle, cuMemCreate, cuMemAllocAsync. */
enum { PLAIN, MANAGED, IMPORTED, CREATED, POOLED, SORTS };
static const uint64_t MIB = 1024 * 1024;

/* What this process imported from another. */
struct import { uint64_t pointer, bytes; unsigned pid; unsigned long long start; };

/* This process: the GPUs it sees, whether through MPS, under which limits, and how much it holds on the one it uses. */
struct process {
    struct machine machine;
    struct gpu *visible[MAX_GPUS], *gpu;
    uint64_t limit[MAX_GPUS], held[SORTS];
    int count, is_mps, percentage, sticky, wrong;
    unsigned pid, server;
    char limits[TEXT * 8];
    struct import imports[MAX_IMPORTS];
};
extern struct process me;

/* Reads environment and machine, joins the MPS daemon where there is one. Returns 0 or CUDA's error. */
int process_begin(void);
/* Takes a context on a visible GPU; gives it back with all that is held. */
int process_enter(struct gpu *gpu);
void process_leave(void);
/* Takes or gives back so many bytes. Returns 0 or CUDA's error. */
int process_take(int sort, uint64_t bytes);
void process_give(int sort, uint64_t bytes);
/* Says whose memory an imported one is; with `bytes` 0 that it is imported no more. Returns 0 or CUDA's error. */
int process_import(uint64_t pointer, uint64_t bytes, unsigned pid, unsigned long long start);
/* The error that struck this process by now, 0 for none. */
int process_check(void);
/* A kernel of ours wrote where nothing is. Returns the error. */
int process_fault(void);
void process_memory(uint64_t *free, uint64_t *total);
/* MiB that CUDA calls the whole of a GPU. */
uint64_t process_total(struct gpu *gpu);
/* NVML is to know that this process used the GPU's engines just now. */
void process_ran_kernel(void);

#define EXPORT __attribute__((visibility("default"))) int
/* What every call on a context begins with: a context, no error that sticks, no fault scripted for it. */
#define CONTEXT_CALL()                                                      \
    do {                                                                    \
        if (!begun) return NOT_INITIALIZED;                                 \
        if (me.gpu == NULL) return INVALID_CONTEXT;                         \
        int struck = process_check();                                       \
        if (struck != 0) return struck;                                     \
        int scripted = sim_fault(__func__, me.gpu->uuid);                   \
        if (scripted != 0) return scripted;                                 \
    } while (0)
extern int begun;

/* Addresses that kernels and copies may use. */
struct block { char *at; uint64_t size; int sort; };
struct block *block_at(uint64_t pointer, uint64_t size);
/* Makes an address usable; with `make` one that is new. Nothing is charged for it. Returns 0 or CUDA's error. */
int block_add(char *at, uint64_t size, int sort);
int block_make(uint64_t *out, uint64_t size, int sort);
/* A pool gives back what it kept and nobody uses (allocators.c). */
void pool_synchronized(void);
#endif
