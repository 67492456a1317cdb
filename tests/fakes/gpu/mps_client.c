/* Stands in for nvidia-cuda-mps-control where it only passes standard input to the daemon. Each transaction of the
 * enforcer starts the program: an interpreter would be nearly all of its cost. mps_daemon.py is the rest. */

#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

enum { MAX_PIPE = 87, MAX_ANSWER = 65536 };

static int refused(int argc, char **argv) {
    static const char *const words[] = {"-p", "-m", "-S", "-M", NULL};
    for (int i = 1; i < argc; i++)
        if (!strcmp(argv[i], "-multiuser-server")) return 1;
    for (int i = 0; argc > 1 && words[i]; i++)
        if (!strcmp(argv[1], words[i])) return 1;
    return 0;
}

static int opened(const char *pipe) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s/control", pipe);
    int connection = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (connection >= 0 && !connect(connection, (struct sockaddr *)&address, sizeof address)) return connection;
    return -1;
}

/* Send each line, print each answer. */
static int talk(int connection) {
    static char answer[MAX_ANSWER];
    char *line = NULL;
    size_t room = 0;
    for (ssize_t length; (length = getline(&line, &room, stdin)) > 0;) {
        if (line[length - 1] == '\n') line[--length] = '\0';
        if (send(connection, line, (size_t)length + 1, MSG_NOSIGNAL) < 0) return 1;
        ssize_t got = recv(connection, answer, sizeof answer, 0);
        if (got <= 0) return strncmp(line, "quit", 4) ? 1 : 0;
        while (got > 0 && answer[got - 1] == '\0') got--;
        fwrite(answer, 1, (size_t)got, stdout);
        fflush(stdout);
    }
    return 0;
}

int main(int argc, char **argv) {
    const char *pipe = getenv("CUDA_MPS_PIPE_DIRECTORY");
    if (!pipe) pipe = "/tmp/nvidia-mps";
    if (strlen(pipe) > MAX_PIPE || refused(argc, argv)) return 1;
    int connection = opened(pipe);
    if (connection < 0) {
        fputs("Cannot find MPS control daemon process\n", stderr);
        return 1;
    }
    return talk(connection);
}
