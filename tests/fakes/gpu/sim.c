/* Reads the state folder (see sim_root). Everything is read afresh: other processes change it at any time. */
#define _GNU_SOURCE
#include "sim.h"
#include <ctype.h>
#include <dirent.h>
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LINE = 1024, PATH = 4096, MAX_FAULTS = 256 };

/* The state folder that belongs to the driver root this library was loaded from, if it lies in one (see node.py). */
static const char *root_of_library(void) {
    static char root[PATH];
    Dl_info self;
    struct stat machine;
    char file[PATH + TEXT];
    if (root[0] != 0) return root;
    if (dladdr((void *)root_of_library, &self) == 0 || self.dli_fname == NULL) return NULL;
    snprintf(root, sizeof root, "%s", self.dli_fname);
    for (char *end = strrchr(root, '/'); end != NULL && end != root; end = strrchr(root, '/')) {
        *end = 0;
        snprintf(file, sizeof file, "%s/state/machine", root);
        if (stat(file, &machine) != 0) continue;
        strcpy(end, "/state");
        return root;
    }
    root[0] = 0;
    return NULL;
}

const char *sim_root(void) {
    const char *named = getenv("GPU_SHARE_SIM");
    return named != NULL ? named : root_of_library();
}

FILE *sim_open(const char *folder, const char *name, const char *mode) {
    char path[PATH];
    const char *root = sim_root();
    if (root == NULL) return NULL;
    snprintf(path, sizeof path, "%s/%s%s%s", root, folder, *folder ? "/" : "", name);
    return fopen(path, mode);
}

int sim_value(const char *line, const char *key, char *out, size_t room) {
    size_t length = strlen(key);
    for (const char *at = line; at != NULL; at = strchr(at, '\t')) {
        if (*at == '\t') at++;
        if (strncmp(at, key, length) != 0 || at[length] != '=') continue;
        at += length + 1;
        snprintf(out, room, "%.*s", (int)strcspn(at, "\t\n"), at);
        return 1;
    }
    return 0;
}

long long sim_number(const char *line, const char *key, long long fallback) {
    char text[TEXT];
    return sim_value(line, key, text, sizeof text) ? atoll(text) : fallback;
}

void sim_world_text(const char *key, char *out, size_t room, const char *fallback) {
    char line[LINE];
    snprintf(out, room, "%s", fallback);
    FILE *file = sim_open("", "world", "r");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) sim_value(line, key, out, room);
    if (file != NULL) fclose(file);
}

int sim_world(const char *key, int fallback) {
    char text[TEXT], number[TEXT];
    snprintf(number, sizeof number, "%d", fallback);
    sim_world_text(key, text, sizeof text, number);
    return atoi(text);
}

static uint64_t memory_of(const char *line) {
    char text[TEXT];
    if (!sim_value(line, "memory_mib", text, sizeof text)) return 0;
    return strcmp(text, "none") == 0 ? UNKNOWN_MIB : strtoull(text, NULL, 10);
}

static void read_gpu(const char *line, struct gpu *gpu) {
    char cc[TEXT] = "8.0";
    sim_value(line, "uuid", gpu->uuid, TEXT);
    sim_value(line, "name", gpu->name, TEXT);
    sim_value(line, "pci", gpu->pci, TEXT);
    sim_value(line, "parent", gpu->parent, TEXT);
    sim_value(line, "cc", cc, TEXT);
    sscanf(cc, "%d.%d", &gpu->major, &gpu->minor_cc);
    gpu->memory_mib = (uint64_t)sim_number(line, "memory_mib", 0);
    gpu->reserved_mib = (uint64_t)sim_number(line, "reserved_mib", 0);
    gpu->minor = (int)sim_number(line, "minor", 0);
    gpu->mig = (int)sim_number(line, "mig", 0);
    gpu->sms = (int)sim_number(line, "sms", 74);
}

int sim_load(struct machine *machine) {
    char line[LINE];
    FILE *file = sim_open("", "machine", "r");
    if (file == NULL) return -1;
    memset(machine, 0, sizeof *machine);
    while (fgets(line, sizeof line, file) != NULL) {
        sim_value(line, "driver", machine->driver, TEXT);
        sim_value(line, "nvml", machine->nvml, TEXT);
        machine->cuda = (int)sim_number(line, "cuda", machine->cuda);
        if (strncmp(line, "gpu\t", 4) == 0 && machine->count < MAX_GPUS)
            read_gpu(line + 4, &machine->gpus[machine->count++]);
        if (strncmp(line, "mig\t", 4) == 0 && machine->instance_count < MAX_GPUS)
            read_gpu(line + 4, &machine->instances[machine->instance_count++]);
    }
    fclose(file);
    return 0;
}

/* State letter and start time from a stat file; the name before the last ')' may hold anything. */
static char read_stat(const char *path, unsigned long long *start) {
    char text[LINE], state = 0, *at;
    FILE *file = fopen(path, "r");
    if (file == NULL) return 0;
    size_t got = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[got] = 0;
    at = strrchr(text, ')');
    if (at == NULL || at[1] == 0) return 0;
    state = at[2];
    at += 2;
    for (int field = 3; field < 22 && at != NULL; field++) at = strchr(at + 1, ' ');
    if (at != NULL && start != NULL) *start = strtoull(at, NULL, 10);
    return state;
}

static int dead(char state) { return state == 0 || state == 'Z' || state == 'X' || state == 'x'; }

/* A zombie leader whose other threads live still holds its memory. */
int sim_alive(unsigned pid, unsigned long long *start) {
    char path[PATH];
    int found = 0;
    struct dirent *entry;
    snprintf(path, sizeof path, "/proc/%u/stat", pid);
    char state = read_stat(path, start);
    if (!dead(state)) return 1;
    if (state == 0) return 0;
    snprintf(path, sizeof path, "/proc/%u/task", pid);
    DIR *tasks = opendir(path);
    while (tasks != NULL && !found && (entry = readdir(tasks)) != NULL) {
        if (!isdigit((unsigned char)entry->d_name[0])) continue;
        snprintf(path, sizeof path, "/proc/%u/task/%s/stat", pid, entry->d_name);
        found = !dead(read_stat(path, NULL));
    }
    if (tasks != NULL) closedir(tasks);
    return found;
}

static int kind_of(const char *line) {
    char text[TEXT] = "", lists[TEXT];
    sim_value(line, "kind", text, sizeof text);
    if (strcmp(text, "mps") != 0) return strcmp(text, "graphics") == 0 ? GRAPHICS : COMPUTE;
    /* nvidia-smi shows MPS clients as M+C: they are in both lists. */
    sim_world_text("mps_clients_listed", lists, sizeof lists, "compute,mps");
    return (strstr(lists, "mps") != NULL ? MPS : 0) | (strstr(lists, "compute") != NULL ? COMPUTE : 0);
}

/* Whether memory that a process imported is still its exporter's. */
static int of_living(const char *line) {
    unsigned long long start = 0;
    return sim_alive((unsigned)sim_number(line, "of", 0), &start) && (unsigned long long)sim_number(line, "of_start", 0) == start;
}

/* Adds up what one process holds on one GPU. Returns 0 where it holds nothing there, or is gone. */
static int read_process(const char *name, const char *uuid, struct row *row) {
    char line[LINE], gpu[TEXT];
    int holds = 0;
    unsigned long long start = 0;
    unsigned pid = (unsigned)strtoul(name, NULL, 10);
    memset(row, 0, sizeof *row);
    row->pid = pid;
    if (!sim_alive(pid, &start)) return 0;
    FILE *file = sim_open("processes", name, "r");
    if (file == NULL) return 0;
    while (fgets(line, sizeof line, file) != NULL) {
        if (!sim_value(line, "gpu", gpu, sizeof gpu) || strcmp(gpu, uuid) != 0) continue;
        if ((unsigned long long)sim_number(line, "start", (long long)start) != start) continue;
        uint64_t mib = memory_of(line);
        char seen[TEXT] = "both", kind[TEXT];
        sim_value(line, "seen", seen, sizeof seen);
        if (strcmp(seen, "after") == 0 && of_living(line)) continue;
        holds = 1;
        row->is_mps |= sim_value(line, "kind", kind, sizeof kind) && strcmp(kind, "mps") == 0;
        if (strcmp(seen, "rows") != 0 && mib != UNKNOWN_MIB) row->device_mib += mib;
        if (strcmp(seen, "device") == 0) continue;
        row->mib = row->mib == UNKNOWN_MIB || mib == UNKNOWN_MIB ? UNKNOWN_MIB : row->mib + mib;
        row->kinds |= kind_of(line);
    }
    fclose(file);
    return holds;
}

int sim_held_rows(const char *uuid, struct row *rows, int room) {
    char path[PATH];
    int count = 0;
    struct dirent *entry;
    const char *root = sim_root();
    if (root == NULL) return 0;
    snprintf(path, sizeof path, "%s/processes", root);
    DIR *folder = opendir(path);
    while (folder != NULL && count < room && (entry = readdir(folder)) != NULL)
        if (strspn(entry->d_name, "0123456789") == strlen(entry->d_name))
            count += read_process(entry->d_name, uuid, &rows[count]);
    if (folder != NULL) closedir(folder);
    return count;
}

/* A fault line that names a pid replaces that pid's row, or adds one nobody holds. */
static int script_row(const char *line, const char *uuid, struct row *rows, int count, int room) {
    char gpu[TEXT];
    unsigned pid = (unsigned)sim_number(line, "pid", 0);
    int at = 0;
    if (sim_value(line, "gpu", gpu, sizeof gpu) && strcmp(gpu, uuid) != 0) return count;
    while (at < count && rows[at].pid != pid) at++;
    if (at == room) return count;
    if (at == count) rows[at] = (struct row){.pid = pid, .kinds = COMPUTE};
    rows[at].mib = memory_of(line);
    return at == count ? count + 1 : count;
}

static int by_pid(const void *a, const void *b) {
    unsigned x = ((const struct row *)a)->pid, y = ((const struct row *)b)->pid;
    return (x > y) - (x < y);
}

int sim_rows(const char *uuid, struct row *rows, int room) {
    char line[LINE], text[TEXT];
    int held_us = sim_world("poll_holds_us", 0);
    if (held_us > 0) {
        int engine = sim_engine(uuid, 0);
        usleep((useconds_t)held_us);
        sim_unlock(engine);
    }
    int count = sim_held_rows(uuid, rows, room);
    FILE *file = sim_open("", "faults", "r");
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (sim_value(line, "pid", text, sizeof text)) count = script_row(line, uuid, rows, count, room);
    if (file != NULL) fclose(file);
    qsort(rows, (size_t)count, sizeof *rows, by_pid);
    return count;
}

static uint64_t add_up(const char *uuid, const char *cgroup);

uint64_t sim_used(const char *uuid) {
    char line[LINE], text[TEXT];
    uint64_t used = UNKNOWN_MIB;
    FILE *file = sim_open("", "faults", "r");
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (sim_value(line, "used_mib", text, sizeof text) &&
            (!sim_value(line, "gpu", text, sizeof text) || strcmp(text, uuid) == 0))
            used = (uint64_t)sim_number(line, "used_mib", 0);
    if (file != NULL) fclose(file);
    return used == UNKNOWN_MIB ? sim_held(uuid) : used;
}

const char *sim_pods_part(const char *path) {
    const char *pods = strstr(path, "/kubepods");
    return pods == NULL ? path : pods;
}

/* In the group itself or below it. */
static int in_cgroup(unsigned pid, const char *cgroup) {
    char path[PATH], line[PATH];
    size_t length = strlen(cgroup);
    int found = 0;
    snprintf(path, sizeof path, "/proc/%u/cgroup", pid);
    FILE *file = fopen(path, "r");
    while (file != NULL && !found && fgets(line, sizeof line, file) != NULL) {
        line[strcspn(line, "\n")] = 0;
        const char *at = strchr(line, ':');
        at = at == NULL ? NULL : strchr(at + 1, ':');
        if (at == NULL) continue;
        at = sim_pods_part(at + 1);
        found = strncmp(at, cgroup, length) == 0 && (at[length] == 0 || at[length] == '/');
    }
    if (file != NULL) fclose(file);
    return found;
}

static uint64_t add_up(const char *uuid, const char *cgroup) {
    uint64_t sum = 0;
    struct row *rows = calloc(MAX_ROWS, sizeof *rows);
    int count = rows == NULL ? 0 : sim_held_rows(uuid, rows, MAX_ROWS);
    for (int i = 0; i < count; i++)
        if (cgroup == NULL || in_cgroup(rows[i].pid, cgroup)) sum += rows[i].device_mib;
    free(rows);
    return sum;
}

uint64_t sim_held(const char *uuid) { return add_up(uuid, NULL) + sim_exported(uuid); }
uint64_t sim_used_by_cgroup(const char *uuid, const char *cgroup) { return add_up(uuid, cgroup); }

/* A call that does not come back while the script is the one it met. */
static void wait_while(const struct stat *script) {
    struct stat now = *script;
    while (now.st_ino == script->st_ino && memcmp(&now.st_mtim, &script->st_mtim, sizeof now.st_mtim) == 0) {
        FILE *file = sim_open("", "faults", "r");
        if (file == NULL || fstat(fileno(file), &now) != 0) now.st_ino = 0;
        if (file != NULL) fclose(file);
        usleep(1000);
    }
}

int sim_fault(const char *call, const char *uuid) {
    /* How often each line of this script was met in this process; another script starts at 0 again. */
    static int met[MAX_FAULTS];
    static struct stat script;
    struct stat now;
    char line[LINE], text[TEXT];
    FILE *file = sim_open("", "faults", "r");
    int error = 0;
    if (file != NULL && fstat(fileno(file), &now) == 0 &&
        (now.st_ino != script.st_ino || memcmp(&now.st_mtim, &script.st_mtim, sizeof now.st_mtim) != 0)) {
        memset(met, 0, sizeof met);
        script = now;
    }
    for (int n = 0; file != NULL && error == 0 && n < MAX_FAULTS && fgets(line, sizeof line, file) != NULL; n++) {
        if (!sim_value(line, "call", text, sizeof text)) continue;
        /* "*" is every call of NVML: what it says is in NVML's numbers. */
        if (strcmp(text, strncmp(call, "cu", 2) == 0 ? call : "*") != 0 && strcmp(text, call) != 0) continue;
        if (sim_value(line, "gpu", text, sizeof text) && (uuid == NULL || strcmp(text, uuid) != 0)) continue;
        int past = __atomic_fetch_add(&met[n], 1, __ATOMIC_RELAXED) - (int)sim_number(line, "after", 0);
        int times = (int)sim_number(line, "times", 0);
        if (past < 0 || (times != 0 && past >= times)) continue;
        usleep((useconds_t)(1000 * sim_number(line, "delay_ms", 0)));
        if (sim_number(line, "hold", 0) != 0) wait_while(&now);
        if (sim_number(line, "signal", 0) != 0) raise((int)sim_number(line, "signal", 0));
        error = (int)sim_number(line, "error", 0);
    }
    if (file != NULL) fclose(file);
    return error;
}

int sim_lie(const char *call) {
    char line[LINE], text[TEXT];
    int lie = 0;
    FILE *file = sim_open("", "faults", "r");
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (sim_value(line, "lie", text, sizeof text) && strcmp(text, call) == 0) lie = (int)sim_number(line, "more", 0);
    if (file != NULL) fclose(file);
    return lie;
}

int sim_put_text(const char *folder, const char *name, const char *text) {
    char temporary[TEXT * 2], from[PATH], to[PATH];
    const char *root = sim_root();
    snprintf(temporary, sizeof temporary, ".%s.%d.new", name, getpid());
    FILE *file = sim_open(folder, temporary, "w");
    if (file == NULL) return -1;
    fputs(text, file);
    if (fclose(file) != 0) return -1;
    snprintf(from, sizeof from, "%s/%s/%s", root, folder, temporary);
    snprintf(to, sizeof to, "%s/%s/%s", root, folder, name);
    return rename(from, to);
}

int sim_get_number(const char *folder, const char *name, int fallback) {
    int number = fallback;
    FILE *file = sim_open(folder, name, "r");
    if (file == NULL) return fallback;
    if (fscanf(file, "%d", &number) != 1) number = fallback;
    fclose(file);
    return number;
}

int sim_put_number(const char *folder, const char *name, int number) {
    char text[TEXT];
    snprintf(text, sizeof text, "%d\n", number);
    return sim_put_text(folder, name, text);
}

/* Cgroup paths outgrow file names, so the file is named by a hash (FNV-1a) and says the path inside. */
static void limit_file(char *out, const char *uuid, const char *cgroup) {
    uint64_t hash = 14695981039346656037ULL;
    for (const char *at = cgroup; *at != 0; at++) hash = (hash ^ (unsigned char)*at) * 1099511628211ULL;
    snprintf(out, TEXT, "%.64s-%016llx", uuid, (unsigned long long)hash);
}

int sim_get_limits(const char *uuid, const char *cgroup, uint64_t *soft, uint64_t *hard) {
    char name[TEXT], line[PATH];
    limit_file(name, uuid, cgroup);
    FILE *file = sim_open("limits", name, "r");
    if (file == NULL) return -1;
    int got = fgets(line, sizeof line, file) != NULL;
    fclose(file);
    if (!got) return -1;
    char text[TEXT];
    *soft = sim_value(line, "soft", text, sizeof text) ? strtoull(text, NULL, 10) : 0;
    *hard = sim_value(line, "hard", text, sizeof text) ? strtoull(text, NULL, 10) : 0;
    return 0;
}

int sim_put_limits(const char *uuid, const char *cgroup, uint64_t soft, uint64_t hard) {
    char name[TEXT], line[PATH + TEXT];
    limit_file(name, uuid, cgroup);
    snprintf(line, sizeof line, "soft=%llu\thard=%llu\tcgroup=%s\n", (unsigned long long)soft,
             (unsigned long long)hard, cgroup);
    return sim_put_text("limits", name, line);
}

int sim_xid(int n, char *uuid) {
    char line[LINE];
    int number = 0;
    FILE *file = sim_open("", "xid", "r");
    for (int i = 0; file != NULL && i <= n && fgets(line, sizeof line, file) != NULL; i++) {
        if (i < n) continue;
        sim_value(line, "gpu", uuid, TEXT);
        number = (int)sim_number(line, "xid", 0);
    }
    if (file != NULL) fclose(file);
    return number;
}
