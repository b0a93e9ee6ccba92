// Has its report go to a pipe that is full, and waits until a signal comes.

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MEMORY = 8 << 20 };

static void on_alarm(int number) { (void)number; }

int main(int count, char **arguments) {
    if (count < 2) {
        int ends[2];
        if (pipe2(ends, O_NONBLOCK)) return 1;
        while (write(ends[1], "x", 1) == 1) {}
        fcntl(ends[1], F_SETFL, 0);
        dup2(ends[1], 9);
        setenv("PALIMPSEST_REPORT", "fd:9", 1);
        execl(arguments[0], arguments[0], "again", (char *)0);
        return 1;
    }
    unsigned char *memory = mmap(NULL, MEMORY, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return 1;
    for (size_t at = 0; at < MEMORY; at += 4096) memory[at] = 1;
    if (!fork()) _exit(0);
    wait(NULL);
    struct sigaction action = {.sa_handler = on_alarm};
    sigaction(SIGALRM, &action, NULL);
    // Again and again: how long the freeze takes depends on the machine.
    struct itimerval time = {{0, 300000}, {0, 300000}};
    setitimer(ITIMER_REAL, &time, NULL);
    for (int round = 0; round < 8; round++)
        if (poll(NULL, 0, -1) != -1 || errno != EINTR) return 1;
    write(1, "interrupted\n", 12);
    _exit(0);
}
