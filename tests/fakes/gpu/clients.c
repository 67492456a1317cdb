/* What CUDA programs do to each other: errors that strike one from outside, locks they share. See sim.h. */
#define _GNU_SOURCE
#include "sim.h"
#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LINE = 1024, PATH = 4096 };

/* Files are everybody's: tenants have users of their own. */
static int lock_file(const char *name, int how) {
    char path[PATH];
    const char *root = sim_root();
    if (root == NULL) return -1;
    snprintf(path, sizeof path, "%s/%s", root, name);
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (file < 0) file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return -1;
    (void)!fchmod(file, 0666);
    while (flock(file, how) != 0) usleep(1000);
    return file;
}

int sim_lock(void) { return lock_file("lock", LOCK_EX); }

void sim_unlock(int lock) {
    if (lock >= 0) close(lock);
}

int sim_engine(const char *uuid, int shared) {
    char name[TEXT * 2];
    snprintf(name, sizeof name, "engine-%s", uuid);
    return lock_file(name, shared ? LOCK_SH : LOCK_EX);
}

int sim_struck(unsigned pid, char *line, size_t room) {
    char name[TEXT];
    unsigned long long start = 0;
    snprintf(name, sizeof name, "%u", pid);
    FILE *file = sim_open("sticky", name, "r");
    if (file == NULL) return 0;
    int got = fgets(line, (int)room, file) != NULL;
    fclose(file);
    return got && sim_alive(pid, &start) && (unsigned long long)sim_number(line, "start", 0) == start;
}

void sim_strike(unsigned pid, const char *uuid, int error, const char *more) {
    char name[TEXT], text[LINE];
    unsigned long long start = 0;
    if (sim_struck(pid, text, sizeof text) || !sim_alive(pid, &start)) return;
    snprintf(name, sizeof name, "%u", pid);
    snprintf(text, sizeof text, "gpu=%s\tstart=%llu\terror=%d%s\n", uuid, start, error, more);
    sim_put_text("sticky", name, text);
}

/* Whether an error had struck a process that is no more: MPS has nothing to lose with it. */
static int was_struck(const char *name, long long start) {
    char line[LINE];
    FILE *file = sim_open("sticky", name, "r");
    if (file == NULL) return 0;
    int struck = fgets(line, sizeof line, file) != NULL && sim_number(line, "start", 0) == start;
    fclose(file);
    return struck;
}

/* Whether a file of processes/ is an MPS client's of this GPU that died in its prime; the file goes with it. */
static int was_killed(const char *root, const char *name, const char *uuid) {
    char line[LINE], text[TEXT], path[PATH];
    unsigned long long start = 0;
    int found = 0, struck = 0, alive = sim_alive((unsigned)strtoul(name, NULL, 10), &start);
    FILE *file = sim_open("processes", name, "r");
    while (file != NULL && !found && fgets(line, sizeof line, file) != NULL) {
        if (!sim_value(line, "gpu", text, sizeof text) || strcmp(text, uuid) != 0) continue;
        if (!sim_value(line, "kind", text, sizeof text) || strcmp(text, "mps") != 0) continue;
        found = !alive || (unsigned long long)sim_number(line, "start", 0) != start;
        struck = was_struck(name, sim_number(line, "start", 0));
    }
    if (file != NULL) fclose(file);
    snprintf(path, sizeof path, "%s/processes/%s", root, name);
    return found && unlink(path) == 0 && !struck;
}

void sim_find_killed(const char *uuid, int hurt) {
    char path[PATH];
    int killed = 0;
    struct dirent *entry;
    const char *root = sim_root();
    struct row *rows = calloc(MAX_ROWS, sizeof *rows);
    snprintf(path, sizeof path, "%s/processes", root);
    DIR *folder = rows == NULL ? NULL : opendir(path);
    while (folder != NULL && (entry = readdir(folder)) != NULL)
        if (strspn(entry->d_name, "0123456789") == strlen(entry->d_name)) killed += was_killed(root, entry->d_name, uuid);
    if (folder != NULL) closedir(folder);
    int count = killed == 0 ? 0 : sim_held_rows(uuid, rows, MAX_ROWS);
    for (int i = 0; i < count; i++)
        if (rows[i].is_mps) sim_strike(rows[i].pid, uuid, hurt == 2 ? 0 : 719, hurt == 2 ? "\twrong=1" : "");
    free(rows);
}

void sim_raise_xid(const char *uuid, int number) {
    FILE *file = number == 0 ? NULL : sim_open("", "xid", "a");
    if (file == NULL) return;
    fprintf(file, "gpu=%s\txid=%d\n", uuid, number);
    fclose(file);
}

int sim_ran_kernels(const char *uuid, unsigned long long after, unsigned *pids, unsigned long long *times, int room) {
    char path[PATH], line[LINE], gpu[TEXT];
    int count = 0;
    struct dirent *entry;
    unsigned long long start;
    snprintf(path, sizeof path, "%s/kernels", sim_root() == NULL ? "" : sim_root());
    DIR *folder = opendir(path);
    while (folder != NULL && count < room && (entry = readdir(folder)) != NULL) {
        unsigned pid = (unsigned)strtoul(entry->d_name, NULL, 10);
        if (pid == 0 || !sim_alive(pid, &start)) continue;
        FILE *file = sim_open("kernels", entry->d_name, "r");
        if (file == NULL) continue;
        int read = fgets(line, sizeof line, file) != NULL && sim_value(line, "gpu", gpu, sizeof gpu);
        fclose(file);
        if (!read || strcmp(gpu, uuid) != 0 || sim_number(line, "start", 0) != (long long)start) continue;
        if ((unsigned long long)sim_number(line, "time_us", 0) <= after) continue;
        pids[count] = pid;
        times[count++] = (unsigned long long)sim_number(line, "time_us", 0);
    }
    if (folder != NULL) closedir(folder);
    return count;
}
