/* libnvidia-ml.so.1 for machines without a GPU: NVML's structs and answers over the state folder of sim.h.
 *
 * Only what this product calls, with the semantics that trip callers up: lists answer SUCCESS to a NULL call only when
 * empty, else error 7 with the count; "used" of the first memory call includes the driver's reserve, of the second not.
 */
#define _GNU_SOURCE
#include "sim.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9, TIMEOUT = 10, FUNCTION_NOT_FOUND = 13, MEMORY = 20, VERSION_MISMATCH = 25, UNKNOWN = 999
};
static const uint64_t MIB = 1024 * 1024;
static const unsigned long long XID = 8;

typedef struct gpu *Device;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } MemoryV2;
typedef struct { unsigned pid; unsigned long long memory; unsigned instance, compute_instance; } ProcessInfo;
typedef struct {
    unsigned multiprocessors, copy_engines, decoders, encoders, jpegs, ofas, gpu_slices, compute_slices;
    unsigned long long memory_mib;
} Attributes;
typedef struct { unsigned gpu, memory; } Rates;
typedef struct { unsigned pid; unsigned long long time_us; unsigned sm, memory, encoder, decoder; } Utilization;
typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } PciInfo;
typedef struct { const char *name_space; unsigned long long soft, hard; } SetLimits;
typedef struct { const char *name_space; unsigned long long soft, hard, used; } GetLimits;
typedef struct { Device device; unsigned long long type, data; unsigned instance, compute_instance; } EventData;
typedef struct { int seen; uint64_t gpus; } EventSet;

static struct machine machine;
static int references;

static int is_gpu(Device device) { return device >= machine.gpus && device < machine.gpus + machine.count; }
static int is_instance(Device device) {
    return device >= machine.instances && device < machine.instances + machine.instance_count;
}

#define EXPORT __attribute__((visibility("default"))) int
/* What every call on a device begins with: initialised, a device of ours, and no fault scripted for it. */
#define DEVICE_CALL(device)                                                              \
    do {                                                                                 \
        if (references == 0) return UNINITIALIZED;                                       \
        if (!is_gpu(device) && !is_instance(device)) return INVALID_ARGUMENT;            \
        int scripted = sim_fault(__func__, (device)->uuid);                              \
        if (scripted != 0) return scripted;                                              \
    } while (0)
#define SYSTEM_CALL()                                     \
    do {                                                  \
        if (references == 0) return UNINITIALIZED;        \
        int scripted = sim_fault(__func__, NULL);         \
        if (scripted != 0) return scripted;               \
    } while (0)

static int copy(char *to, unsigned room, const char *text) {
    if (to == NULL) return INVALID_ARGUMENT;
    if (strlen(text) >= room) return INSUFFICIENT_SIZE;
    strcpy(to, text);
    return SUCCESS;
}

EXPORT nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    int scripted = sim_fault(__func__, NULL);
    if (scripted != 0) return scripted;
    if (references == 0 && sim_load(&machine) != 0) return DRIVER_NOT_LOADED;
    references++;
    return SUCCESS;
}

EXPORT nvmlShutdown(void) {
    SYSTEM_CALL();
    references--;
    return SUCCESS;
}

__attribute__((visibility("default"))) const char *nvmlErrorString(int error) {
    static const char *names[] = {"Success", "Uninitialized", "Invalid Argument", "Not Supported",
                                  "Insufficient Permissions", "Already Initialized", "Not Found", "Insufficient Size"};
    return error >= 0 && error < 8 ? names[error] : "Simulated Error";
}

EXPORT nvmlSystemGetDriverVersion(char *out, unsigned room) { SYSTEM_CALL(); return copy(out, room, machine.driver); }
EXPORT nvmlSystemGetNVMLVersion(char *out, unsigned room) { SYSTEM_CALL(); return copy(out, room, machine.nvml); }
EXPORT nvmlSystemGetCudaDriverVersion_v2(int *out) { SYSTEM_CALL(); *out = machine.cuda; return SUCCESS; }
EXPORT nvmlDeviceGetCount_v2(unsigned *out) { SYSTEM_CALL(); *out = (unsigned)machine.count; return SUCCESS; }

EXPORT nvmlDeviceGetHandleByIndex_v2(unsigned index, Device *out) {
    SYSTEM_CALL();
    if (index >= (unsigned)machine.count) return INVALID_ARGUMENT;
    *out = &machine.gpus[index];
    return sim_fault(__func__, (*out)->uuid);
}

EXPORT nvmlDeviceGetHandleByUUID(const char *uuid, Device *out) {
    SYSTEM_CALL();
    for (int i = 0; uuid != NULL && i < machine.count; i++)
        if (strcmp(machine.gpus[i].uuid, uuid) == 0) {
            *out = &machine.gpus[i];
            return SUCCESS;
        }
    for (int i = 0; uuid != NULL && i < machine.instance_count; i++)
        if (strcmp(machine.instances[i].uuid, uuid) == 0) {
            *out = &machine.instances[i];
            return SUCCESS;
        }
    return NOT_FOUND;
}

EXPORT nvmlDeviceGetUUID(Device gpu, char *out, unsigned room) { DEVICE_CALL(gpu); return copy(out, room, gpu->uuid); }
EXPORT nvmlDeviceGetName(Device gpu, char *out, unsigned room) { DEVICE_CALL(gpu); return copy(out, room, gpu->name); }
EXPORT nvmlDeviceGetMinorNumber(Device gpu, unsigned *out) { DEVICE_CALL(gpu); *out = (unsigned)gpu->minor; return SUCCESS; }

EXPORT nvmlDeviceGetCudaComputeCapability(Device gpu, int *major, int *minor) {
    DEVICE_CALL(gpu);
    *major = gpu->major;
    *minor = gpu->minor_cc;
    return SUCCESS;
}

/* Cores of a multiprocessor, as NVIDIA's programming guide has them by compute capability. */
EXPORT nvmlDeviceGetNumGpuCores(Device gpu, unsigned *out) {
    DEVICE_CALL(gpu);
    if (is_instance(gpu)) return NOT_SUPPORTED;
    *out = (unsigned)gpu->sms * (gpu->major < 8 || (gpu->major == 8 && gpu->minor_cc == 0) ? 64 : 128);
    return SUCCESS;
}

EXPORT nvmlDeviceGetPciInfo_v3(Device gpu, PciInfo *out) {
    DEVICE_CALL(gpu);
    memset(out, 0, sizeof *out);
    snprintf(out->bus_id, sizeof out->bus_id, "%.31s", gpu->pci);
    sscanf(gpu->pci, "%x:%x:%x", &out->domain, &out->bus, &out->device);
    snprintf(out->legacy, sizeof out->legacy, "%04x:%02x:%02x.0", out->domain & 0xffff, out->bus & 0xff, out->device & 0xff);
    return SUCCESS;
}

EXPORT nvmlDeviceGetMemoryInfo(Device gpu, Memory *out) {
    DEVICE_CALL(gpu);
    uint64_t used = sim_used(gpu->uuid) + gpu->reserved_mib;
    out->total = gpu->memory_mib * MIB;
    out->used = used * MIB;
    out->free = used > gpu->memory_mib ? 0 : (gpu->memory_mib - used) * MIB;
    return SUCCESS;
}

EXPORT nvmlDeviceGetMemoryInfo_v2(Device gpu, MemoryV2 *out) {
    DEVICE_CALL(gpu);
    if (out->version != 0x02000028) return VERSION_MISMATCH;
    uint64_t used = sim_used(gpu->uuid), taken = used + gpu->reserved_mib;
    out->total = gpu->memory_mib * MIB;
    out->reserved = gpu->reserved_mib * MIB;
    out->used = used * MIB;
    out->free = taken > gpu->memory_mib ? 0 : (gpu->memory_mib - taken) * MIB;
    return SUCCESS;
}

/* The count goes out in either case: the number needed, or the number written. */
static int list(const char *call, Device gpu, int kind, unsigned *count, ProcessInfo *out) {
    if (count == NULL) return INVALID_ARGUMENT;
    struct row *rows = calloc(MAX_ROWS, sizeof *rows);
    if (rows == NULL) return MEMORY;
    unsigned room = out == NULL ? 0 : *count, needed = 0;
    int all = sim_rows(gpu->uuid, rows, MAX_ROWS);
    for (int i = 0; i < all; i++) {
        if ((rows[i].kinds & kind) == 0) continue;
        if (needed < room) {
            uint64_t bytes = rows[i].mib == UNKNOWN_MIB ? UNKNOWN_MIB : rows[i].mib * MIB;
            out[needed] = (ProcessInfo){rows[i].pid, bytes, 0xffffffff, 0xffffffff};
        }
        needed++;
    }
    free(rows);
    *count = needed;
    if (out != NULL && sim_lie(call) > 0) *count = room + (unsigned)sim_lie(call);
    return needed > room ? INSUFFICIENT_SIZE : SUCCESS;
}

#define LIST(name, kind) \
    EXPORT name(Device gpu, unsigned *count, ProcessInfo *out) { DEVICE_CALL(gpu); return list(__func__, gpu, kind, count, out); }
LIST(nvmlDeviceGetComputeRunningProcesses_v3, COMPUTE)
LIST(nvmlDeviceGetComputeRunningProcesses_v2, COMPUTE)
LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, GRAPHICS)
LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, GRAPHICS)
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, MPS)
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v2, MPS)

/* Who ran kernels after that moment; the last time of each alone. With nobody there is nothing to find. */
EXPORT nvmlDeviceGetProcessUtilization(Device gpu, Utilization *out, unsigned *count, unsigned long long after) {
    unsigned pids[MAX_GPUS], needed = 0;
    unsigned long long times[MAX_GPUS];
    DEVICE_CALL(gpu);
    if (count == NULL) return INVALID_ARGUMENT;
    if (gpu->mig || is_instance(gpu)) return NOT_SUPPORTED;
    needed = (unsigned)sim_ran_kernels(gpu->uuid, after, pids, times, MAX_GPUS);
    unsigned room = out == NULL ? 0 : *count;
    for (unsigned i = 0; i < needed && i < room; i++) out[i] = (Utilization){pids[i], times[i], 50, 0, 0, 0};
    *count = needed;
    return needed == 0 ? NOT_FOUND : needed > room ? INSUFFICIENT_SIZE : SUCCESS;
}

/* Of the whole GPU: whether anything ran within the last second. */
EXPORT nvmlDeviceGetUtilizationRates(Device gpu, Rates *out) {
    unsigned pids[MAX_GPUS];
    unsigned long long times[MAX_GPUS];
    struct timespec now;
    DEVICE_CALL(gpu);
    if (gpu->mig || is_instance(gpu)) return NOT_SUPPORTED;
    clock_gettime(CLOCK_REALTIME, &now);
    unsigned long long us = (unsigned long long)now.tv_sec * 1000000 + (unsigned long long)now.tv_nsec / 1000;
    *out = (Rates){sim_ran_kernels(gpu->uuid, us - 1000000, pids, times, MAX_GPUS) > 0 ? 50 : 0, 0};
    return SUCCESS;
}

EXPORT nvmlDeviceGetComputeMode(Device gpu, unsigned *out) {
    DEVICE_CALL(gpu);
    *out = (unsigned)sim_get_number("compute_mode", gpu->uuid, 0);
    return SUCCESS;
}

EXPORT nvmlDeviceSetComputeMode(Device gpu, unsigned mode) {
    DEVICE_CALL(gpu);
    if (mode != 0 && mode != 2 && mode != 3) return INVALID_ARGUMENT;
    return sim_put_number("compute_mode", gpu->uuid, (int)mode) == 0 ? SUCCESS : UNKNOWN;
}

/* What only a reset repairs: rows waiting to be remapped (Ampere and newer), pages waiting to be retired (before). */
EXPORT nvmlDeviceGetRemappedRows(Device gpu, unsigned *correctable, unsigned *uncorrectable, unsigned *pending, unsigned *failed) {
    DEVICE_CALL(gpu);
    if (is_instance(gpu) || gpu->major < 8) return NOT_SUPPORTED;
    *correctable = *failed = 0;
    *uncorrectable = *pending = (unsigned)sim_get_number("ecc", gpu->uuid, 0);
    return SUCCESS;
}

EXPORT nvmlDeviceGetRetiredPagesPendingStatus(Device gpu, unsigned *pending) {
    DEVICE_CALL(gpu);
    if (gpu->major >= 8) return NOT_SUPPORTED;
    *pending = (unsigned)sim_get_number("ecc", gpu->uuid, 0);
    return SUCCESS;
}

EXPORT nvmlDeviceGetMigMode(Device gpu, unsigned *current, unsigned *pending) {
    DEVICE_CALL(gpu);
    if (is_instance(gpu) || gpu->major < 8 || (gpu->major == 8 && gpu->minor_cc != 0)) return NOT_SUPPORTED;
    *current = *pending = (unsigned)gpu->mig;
    return SUCCESS;
}

EXPORT nvmlDeviceGetMaxMigDeviceCount(Device gpu, unsigned *out) { DEVICE_CALL(gpu); *out = gpu->mig ? 7 : 0; return SUCCESS; }

/* Positions may be empty: what was destroyed leaves a hole that callers must pass over. */
EXPORT nvmlDeviceGetMigDeviceHandleByIndex(Device gpu, unsigned index, Device *out) {
    DEVICE_CALL(gpu);
    if (!gpu->mig) return NOT_SUPPORTED;
    for (int i = 0; i < machine.instance_count; i++)
        if (strcmp(machine.instances[i].parent, gpu->uuid) == 0 && machine.instances[i].minor == (int)index) {
            *out = &machine.instances[i];
            return SUCCESS;
        }
    return NOT_FOUND;
}

EXPORT nvmlDeviceGetDeviceHandleFromMigDeviceHandle(Device gpu, Device *out) {
    DEVICE_CALL(gpu);
    for (int i = 0; is_instance(gpu) && i < machine.count; i++)
        if (strcmp(machine.gpus[i].uuid, gpu->parent) == 0) {
            *out = &machine.gpus[i];
            return SUCCESS;
        }
    return NOT_SUPPORTED;
}

EXPORT nvmlDeviceIsMigDeviceHandle(Device gpu, unsigned *out) { DEVICE_CALL(gpu); *out = is_instance(gpu); return SUCCESS; }
EXPORT nvmlDeviceGetGpuInstanceId(Device gpu, unsigned *out) { DEVICE_CALL(gpu); (void)out; return NOT_SUPPORTED; }
EXPORT nvmlDeviceGetComputeInstanceId(Device gpu, unsigned *out) { DEVICE_CALL(gpu); (void)out; return NOT_SUPPORTED; }
EXPORT nvmlDeviceGetAttributes_v2(Device gpu, Attributes *out) {
    DEVICE_CALL(gpu);
    if (!is_instance(gpu)) return NOT_SUPPORTED;
    memset(out, 0, sizeof *out);
    out->multiprocessors = (unsigned)gpu->sms;
    out->memory_mib = gpu->memory_mib;
    return SUCCESS;
}

/* Limits per cgroup came with driver R615; the path is taken as below /sys/fs/cgroup, or below a hierarchy of v1. */
static const char *below(const char *path) {
    static const char root[] = "/sys/fs/cgroup";
    const char *pods = sim_pods_part(path);
    if (strncmp(path, root, sizeof root - 1) != 0) return path;
    return pods != path ? pods : path + sizeof root - 1;
}

EXPORT nvmlDeviceSetMemoryLimits_v1(Device gpu, SetLimits *limits) {
    DEVICE_CALL(gpu);
    if (atoi(machine.driver) < 615) return FUNCTION_NOT_FOUND;
    if (gpu->mig || is_instance(gpu)) return NOT_SUPPORTED;
    if (limits == NULL || limits->name_space == NULL || limits->soft > limits->hard) return INVALID_ARGUMENT;
    return sim_put_limits(gpu->uuid, below(limits->name_space), limits->soft, limits->hard) == 0 ? SUCCESS : UNKNOWN;
}

EXPORT nvmlDeviceGetMemoryLimits_v1(Device gpu, GetLimits *limits) {
    DEVICE_CALL(gpu);
    if (atoi(machine.driver) < 615) return FUNCTION_NOT_FOUND;
    if (gpu->mig || is_instance(gpu)) return NOT_SUPPORTED;
    if (limits == NULL || limits->name_space == NULL) return INVALID_ARGUMENT;
    uint64_t soft = 0, hard = ~0ULL;
    sim_get_limits(gpu->uuid, below(limits->name_space), &soft, &hard);
    limits->soft = soft;
    limits->hard = hard;
    limits->used = sim_used_by_cgroup(gpu->uuid, below(limits->name_space)) * MIB;
    return SUCCESS;
}

EXPORT nvmlDeviceGetSupportedEventTypes(Device gpu, unsigned long long *out) { DEVICE_CALL(gpu); *out = XID; return SUCCESS; }

/* A new set sees only what happens after it was made. */
EXPORT nvmlEventSetCreate(EventSet **out) {
    char uuid[TEXT];
    SYSTEM_CALL();
    *out = calloc(1, sizeof **out);
    while (*out != NULL && sim_xid((*out)->seen, uuid) != 0) (*out)->seen++;
    return *out == NULL ? MEMORY : SUCCESS;
}

EXPORT nvmlDeviceRegisterEvents(Device gpu, unsigned long long types, EventSet *set) {
    DEVICE_CALL(gpu);
    if (set == NULL || (types & ~XID) != 0) return INVALID_ARGUMENT;
    set->gpus |= 1ULL << (gpu - machine.gpus);
    return SUCCESS;
}

static int next_event(EventSet *set, EventData *out) {
    char uuid[TEXT] = "";
    int number;
    while ((number = sim_xid(set->seen, uuid)) != 0) {
        set->seen++;
        for (int i = 0; i < machine.count; i++)
            if ((set->gpus >> i & 1) && strcmp(machine.gpus[i].uuid, uuid) == 0) {
                *out = (EventData){&machine.gpus[i], XID, (unsigned long long)number, 0xffffffff, 0xffffffff};
                return 1;
            }
    }
    return 0;
}

static long long now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000LL + now.tv_nsec / 1000000;
}

EXPORT nvmlEventSetWait_v2(EventSet *set, EventData *out, unsigned timeout_ms) {
    SYSTEM_CALL();
    if (set == NULL || out == NULL) return INVALID_ARGUMENT;
    for (long long end = now_ms() + timeout_ms; ; usleep(5000)) {
        if (next_event(set, out)) return SUCCESS;
        if (now_ms() >= end) return TIMEOUT;
    }
}

EXPORT nvmlEventSetFree(EventSet *set) {
    SYSTEM_CALL();
    free(set);
    return SUCCESS;
}
