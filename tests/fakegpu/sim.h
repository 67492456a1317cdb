/* The state folder as C sees it; the layout is described in state.py. */
#ifndef SIM_H
#define SIM_H
#include <stdint.h>

enum { MAX_GPUS = 64, MAX_ROWS = 8192, TEXT = 128 };
enum { COMPUTE = 1, GRAPHICS = 2, MPS = 4 };
static const uint64_t UNKNOWN_MIB = ~0ULL;

struct gpu {
    char uuid[TEXT], name[TEXT], pci[TEXT];
    uint64_t memory_mib, reserved_mib;
    int major, minor_cc, minor, mig;
};

struct machine {
    char driver[TEXT], nvml[TEXT];
    int cuda, count;
    struct gpu gpus[MAX_GPUS];
};

/* One process on one GPU: all its holdings added up, and the lists it shows in. */
struct row {
    unsigned pid;
    uint64_t mib;
    int kinds;
};

/* Returns 0, or -1 where there is no machine. */
int sim_load(struct machine *machine);
/* Rows of live processes on a GPU, scripted ones included; at most `room`. Returns how many. */
int sim_rows(const char *uuid, struct row *rows, int room);
/* MiB held on a GPU, or what the fault file says instead. */
uint64_t sim_used(const char *uuid);
/* Waits and returns the error scripted for a call, 0 for none. `uuid` may be NULL. */
int sim_fault(const char *call, const char *uuid);
int sim_get_number(const char *folder, const char *name, int fallback);
int sim_put_number(const char *folder, const char *name, int number);
/* Limits of one cgroup on one GPU; returns 0, or -1 where none was set. */
int sim_get_limits(const char *uuid, const char *cgroup, uint64_t *soft, uint64_t *hard);
int sim_put_limits(const char *uuid, const char *cgroup, uint64_t soft, uint64_t hard);
/* MiB held by processes of a cgroup (the path below /sys/fs/cgroup) on a GPU. */
uint64_t sim_used_by_cgroup(const char *uuid, const char *cgroup);
/* The n-th critical error: its number and GPU, or 0 where there is none yet. */
int sim_xid(int n, char *uuid);
#endif
