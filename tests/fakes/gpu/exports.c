/* Memory that descriptors hold, as cuMemExportToShareableHandle makes them. See sim.h.
 *
 * A lock of flock belongs to an open file and to all its copies, in whatever process: it ends with the last of them.
 */
#define _GNU_SOURCE
#include "sim.h"
#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH = 4096, LINE = 512 };
static const char FOLDER[] = "nvidiactl";

int sim_export(const char *uuid, uint64_t mib, unsigned *number) {
    static unsigned made;
    char path[PATH], ready[PATH], text[LINE];
    unsigned long long start = 0;
    unsigned own = ((unsigned)getpid() << 12) + ++made;
    sim_alive((unsigned)getpid(), &start);
    snprintf(path, sizeof path, "%s/%s", sim_root(), FOLDER);
    (void)mkdir(path, 0777);
    snprintf(path, sizeof path, "%s/%s/.%u", sim_root(), FOLDER, own);
    snprintf(ready, sizeof ready, "%s/%s/%u", sim_root(), FOLDER, own);
    int file = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file < 0 || flock(file, LOCK_SH) != 0) return -1;
    int length = snprintf(text, sizeof text, "gpu=%s\tmemory_mib=%llu\tof=%d\tof_start=%llu\n", uuid,
                          (unsigned long long)mib, getpid(), start);
    if (write(file, text, (size_t)length) != length || rename(path, ready) != 0) return -1;
    *number = own;
    return file;
}

void sim_export_release(unsigned number) {
    char path[PATH];
    snprintf(path, sizeof path, "%s/%s/%u", sim_root(), FOLDER, number);
    FILE *file = fopen(path, "a");
    if (file == NULL) return;
    fputs("released\n", file);
    fclose(file);
}

/* MiB of one export on a GPU that no row counts; a file that nobody holds any more goes. */
static uint64_t exported(const char *path, const char *uuid) {
    char line[LINE], more[LINE] = "", gpu[TEXT];
    unsigned long long start = 0;
    FILE *file = fopen(path, "r");
    if (file == NULL) return 0;
    int free = flock(fileno(file), LOCK_EX | LOCK_NB) == 0;
    int read = !free && fgets(line, sizeof line, file) != NULL && sim_value(line, "gpu", gpu, sizeof gpu);
    int released = read && fgets(more, sizeof more, file) != NULL;
    fclose(file);
    if (free) unlink(path);
    if (!read || strcmp(gpu, uuid) != 0) return 0;
    int alive = sim_alive((unsigned)sim_number(line, "of", 0), &start);
    int lives = alive && (unsigned long long)sim_number(line, "of_start", 0) == start;
    return released || !lives ? (uint64_t)sim_number(line, "memory_mib", 0) : 0;
}

uint64_t sim_exported(const char *uuid) {
    char path[PATH];
    uint64_t sum = 0;
    struct dirent *entry;
    const char *root = sim_root();
    snprintf(path, sizeof path, "%s/%s", root == NULL ? "" : root, FOLDER);
    DIR *folder = opendir(path);
    while (folder != NULL && (entry = readdir(folder)) != NULL) {
        if (entry->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "%s/%s/%s", root, FOLDER, entry->d_name);
        sum += exported(path, uuid);
    }
    if (folder != NULL) closedir(folder);
    return sum;
}
