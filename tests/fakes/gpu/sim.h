/* The state folder as C sees it; the layout is described in state.py. */
#ifndef SIM_H
#define SIM_H
#include <stdint.h>
#include <stdio.h>

enum { MAX_GPUS = 64, MAX_ROWS = 8192, TEXT = 128 };
enum { COMPUTE = 1, GRAPHICS = 2, MPS = 4 };
static const uint64_t UNKNOWN_MIB = ~0ULL;

struct gpu {
    char uuid[TEXT], name[TEXT], pci[TEXT], parent[TEXT];
    uint64_t memory_mib, reserved_mib;
    int major, minor_cc, minor, mig, sms;
};

struct machine {
    char driver[TEXT], nvml[TEXT];
    int cuda, count, instance_count;
    struct gpu gpus[MAX_GPUS];
    /* Of MIG: each names its parent. */
    struct gpu instances[MAX_GPUS];
};

/* One process on one GPU: what lists say of it, the lists it shows in, and what it takes of the card. */
struct row {
    unsigned pid;
    uint64_t mib;
    int kinds, is_mps;
    uint64_t device_mib;
};

/* The state folder: GPU_SHARE_SIM, else `state` beside or above the driver root that holds this library; NULL: none. */
const char *sim_root(void);
/* Returns 0, or -1 where there is no machine. */
int sim_load(struct machine *machine);
/* Rows of live processes on a GPU, scripted ones included; at most `room`. Returns how many. */
int sim_rows(const char *uuid, struct row *rows, int room);
/* MiB held on a GPU, or what the fault file says instead. */
uint64_t sim_used(const char *uuid);
/* Waits, ends the process by a signal, or returns the error scripted for a call, 0 for none. `uuid` may be NULL. */
int sim_fault(const char *call, const char *uuid);
/* By how many a list's count is to exceed what it was given room for. */
int sim_lie(const char *call);
int sim_get_number(const char *folder, const char *name, int fallback);
int sim_put_number(const char *folder, const char *name, int number);
/* Limits of one cgroup on one GPU; returns 0, or -1 where none was set. */
int sim_get_limits(const char *uuid, const char *cgroup, uint64_t *soft, uint64_t *hard);
int sim_put_limits(const char *uuid, const char *cgroup, uint64_t soft, uint64_t hard);
/* A cgroup path from the kubelet's own group on: what leads there depends on who looks. */
const char *sim_pods_part(const char *path);
/* MiB held by processes of a cgroup (the path below /sys/fs/cgroup), and of those below it, on a GPU. */
uint64_t sim_used_by_cgroup(const char *uuid, const char *cgroup);
/* The n-th critical error: its number and GPU, or 0 where there is none yet. */
int sim_xid(int n, char *uuid);
/* Rows of live processes without what is scripted, also of those that stand in no list. */
int sim_held_rows(const char *uuid, struct row *rows, int room);
/* MiB of the card that live processes hold, whatever the fault file says. */
uint64_t sim_held(const char *uuid);
/* Live processes that ran kernels on a GPU after a moment, at most `room`: pids and microseconds. Returns how many. */
int sim_ran_kernels(const char *uuid, unsigned long long after, unsigned *pids, unsigned long long *times, int room);
/* Whether a process has a live thread; its start time. */
int sim_alive(unsigned pid, unsigned long long *start);
FILE *sim_open(const char *folder, const char *name, const char *mode);
int sim_put_text(const char *folder, const char *name, const char *text);
/* The value of `key` in a line of TAB-separated key=value parts; 0 where it is not there. */
int sim_value(const char *line, const char *key, char *out, size_t room);
long long sim_number(const char *line, const char *key, long long fallback);
/* A switch of this world: how hardware behaves where nobody knows it yet. See world.py. */
int sim_world(const char *key, int fallback);
void sim_world_text(const char *key, char *out, size_t room, const char *fallback);

/* From here on: what CUDA programs do to each other (clients.c). */
int sim_lock(void);
void sim_unlock(int lock);
/* A line of sticky/<pid> for a process that something struck; 0 where nothing did. */
int sim_struck(unsigned pid, char *line, size_t room);
/* With the lock held: from now on every CUDA call of that process fails. */
void sim_strike(unsigned pid, const char *uuid, int error, const char *more);
/* With the lock held: MPS clients of a GPU that died without a word, if that hurts their neighbours here. */
void sim_find_killed(const char *uuid, int hurt);
void sim_raise_xid(const char *uuid, int number);
/* Memory behind a descriptor: an open file below `nvidiactl` whose lock every copy of it holds. The number goes out; -1
 * where it cannot be made. From its release, or the end of its maker, the card's total counts it and no row does. */
int sim_export(const char *uuid, uint64_t mib, unsigned *number);
void sim_export_release(unsigned number);
/* MiB of a GPU that only descriptors hold. */
uint64_t sim_exported(const char *uuid);
/* Holds the GPU's engines for a while: alone, or with others that share. */
int sim_engine(const char *uuid, int shared);
#endif
