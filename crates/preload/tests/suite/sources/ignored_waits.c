// Waits while another process sends signals that this one ignores, as often as it can: no wait hears of them.
#define _GNU_SOURCE
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MEMORY = 64 << 20, MILLIS = 20 };

int main(void) {
    unsigned char *memory = mmap(NULL, MEMORY, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return 1;
    madvise(memory, MEMORY, MADV_NOHUGEPAGE);
    memset(memory, 1, MEMORY);
    // One by the program's wish, and one by default.
    signal(SIGUSR1, SIG_IGN);
    pid_t parent = getpid(), sender = fork();
    if (!sender) {
        while (getppid() == parent && !kill(parent, SIGUSR1) && !kill(parent, SIGWINCH)) {}
        _exit(0);
    }
    if (!fork()) _exit(0);
    int efd = epoll_create1(0), ended[5] = {0};
    sigset_t none;
    sigemptyset(&none);
    struct epoll_event event;
    struct timespec time = {0, MILLIS * 1000000};
    for (int round = 0; round < 100; round++) {
        int way = round % 5;
        int answer = way == 0   ? epoll_wait(efd, &event, 1, MILLIS)
                     : way == 1 ? epoll_pwait(efd, &event, 1, MILLIS, &none)
                     : way == 2 ? poll(NULL, 0, MILLIS)
                     : way == 3 ? pselect(0, NULL, NULL, NULL, &time, &none)
                                : nanosleep(&time, NULL);
        ended[way] += answer != 0;
    }
    kill(sender, SIGKILL);
    // On a busy machine the freeze takes more waits.
    const char *report = getenv("PALIMPSEST_REPORT");
    for (int round = 0; getenv("LD_PRELOAD") && report && access(report, F_OK) && round < 40000; round++)
        poll(NULL, 0, MILLIS);
    for (int way = 0; way < 5; way++) printf("%d: %d ended by signals\n", way, ended[way]);
    while (wait(NULL) > 0) {}
    return 0;
}
