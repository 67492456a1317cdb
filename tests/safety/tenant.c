/* Tenants that are hard to end. tenant MODE CGROUP.PROCS [own]: joins the cgroup, and does as MODE says; with "own" as
 * the first process of a pid namespace of its own, as runtimes start containers: what waits for it outside is in no
 * container. Prints the pid, as its parent sees it, of whoever is to hold GPU memory. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#define EVERY 5000      /* microseconds: 200 forks a second */
#define LIFE 300000     /* of each of them */

static void hear(int number) { (void)number; }

static void enter(const char *procs) {
    int file = open(procs, O_WRONLY);
    if (file < 0 || write(file, "0", 1) != 1) {
        perror(procs);
        _exit(1);
    }
    close(file);
}

static void tell(void) {
    printf("%d\n", getpid());
    fflush(stdout);
}

static void rest(void) {
    for (;;)
        pause();
}

/* Forks that leave their session, fork again and leave their parent, and so do their children. */
static void storm(void) {
    signal(SIGCHLD, SIG_IGN);
    if (fork() == 0)
        rest(); /* the one that holds memory */
    tell();
    for (;; usleep(EVERY)) {
        if (fork() != 0)
            continue;
        setsid();
        if (fork() != 0)
            _exit(0);
        setsid();
        if (fork() != 0)
            usleep(LIFE);
        else
            usleep(LIFE / 2);
        _exit(0);
    }
}

static void *live(void *nothing) {
    tell();
    rest();
    return nothing;
}

/* The first thread ends, the process lives on in another one. */
static void headless(void) {
    pthread_t thread;
    pthread_create(&thread, NULL, live, NULL);
    pthread_exit(NULL);
}

/* Waits in the kernel for a child that borrowed its memory. */
static void lender(void) {
    tell();
    if (vfork() == 0)
        rest();
    _exit(0);
}

/* Stopped by a tracer, who passes no signal on. */
static void traced(void) {
    pid_t child = fork();
    if (child == 0)
        rest();
    int status;
    ptrace(PTRACE_ATTACH, child, NULL, NULL);
    waitpid(child, &status, 0); /* and it is never let go on */
    printf("%d\n", child);
    fflush(stdout);
    waitpid(child, &status, 0);
    rest();
}

static void corpse(void) {
    pid_t child = fork();
    if (child == 0) {
        tell();
        _exit(0);
    }
    rest(); /* and does not reap it */
}

/* Two that do not hear SIGTERM, each in a session of its own; whoever ends has a successor at once. */
static void respawn(void) {
    signal(SIGTERM, SIG_IGN);
    tell();
    for (int living = 0;; wait(NULL), living--)
        for (; living < 2; living++)
            if (fork() == 0) {
                setsid();
                rest();
            }
}

static void run(const char *mode) {
    if (strcmp(mode, "hearing") == 0) {
        signal(SIGTERM, hear);
        storm();
    } else if (strcmp(mode, "storm") == 0)
        storm();
    else if (strcmp(mode, "respawn") == 0)
        respawn();
    else if (strcmp(mode, "headless") == 0)
        headless();
    else if (strcmp(mode, "lender") == 0)
        lender();
    else if (strcmp(mode, "traced") == 0)
        traced();
    else if (strcmp(mode, "corpse") == 0)
        corpse();
    else {
        if (strcmp(mode, "stubborn") == 0)
            signal(SIGTERM, SIG_IGN);
        tell();
        if (strcmp(mode, "stopped") == 0)
            raise(SIGSTOP);
        rest();
    }
}

int main(int count, char **words) {
    if (count > 3) {
        if (unshare(CLONE_NEWPID) != 0) {
            perror("unshare");
            return 1;
        }
        pid_t first = fork();
        if (first != 0)
            return waitpid(first, NULL, 0) == first ? 0 : 1;
    }
    enter(words[2]);
    run(words[1]);
}
