// Waits or forks in a handler whose stack is an array on the main stack, while slices are due, and tells whether what
// lies below that array is as before. The arguments: `waits` or `forks`; and `disarmed` for a stack that the kernel
// takes for a usual one while the handler runs, `thread` for another thread.

#define _GNU_SOURCE
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

// `include/uapi/linux/signal.h`
#ifndef SS_AUTODISARM
#define SS_AUTODISARM (1U << 31)
#endif

// The frame of a signal may have 12 KiB (AMX).
enum { MEMORY = 64 << 20, BELOW = 256 << 10, STACK = 24 << 10 };

struct frame {
    unsigned char below[BELOW], stack[STACK];
};

static void waits(int number) {
    (void)number;
    for (int round = 0; round < 5; round++)
        if (poll(NULL, 0, 10) || nanosleep(&(struct timespec){0, 10000000}, NULL)) _exit(4);
}

static void forks(int number) {
    (void)number;
    for (int round = 0; round < 3; round++) {
        pid_t child = fork();
        if (!child) _exit(0);
        if (child < 0 || waitpid(child, NULL, 0) != child) _exit(5);
    }
}

static int handled_within(void (*handler)(int), int flags) {
    struct frame frame;
    memset(frame.below, 0x5a, BELOW);
    stack_t stack = {.ss_sp = frame.stack, .ss_size = STACK, .ss_flags = flags};
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_ONSTACK};
    if (sigaltstack(&stack, NULL) || sigaction(SIGUSR1, &action, NULL) || raise(SIGUSR1)) return 3;
    stack.ss_flags = SS_DISABLE;
    if (sigaltstack(&stack, NULL)) return 3;
    int changed = 0;
    for (int at = 0; at < BELOW; at++) changed += ((volatile unsigned char *)frame.below)[at] != 0x5a;
    printf("%d bytes changed\n", changed);
    return 0;
}

static void *sleeps(void *unused) {
    for (;;) pause();
    return unused;
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    int is_fork = !strcmp(argv[1], "forks"), is_disarmed = !strcmp(argv[2], "disarmed");
    pthread_t thread;
    if (!strcmp(argv[2], "thread") && pthread_create(&thread, NULL, sleeps, NULL)) return 2;
    unsigned char *memory = mmap(NULL, MEMORY, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return 1;
    for (size_t at = 0; at < MEMORY; at += 4096) memory[at] = 1;
    if (!is_fork && !fork()) _exit(0);
    if (!is_fork) wait(NULL);
    int status = handled_within(is_fork ? forks : waits, is_disarmed ? (int)SS_AUTODISARM : 0);
    // Until the report comes: the main stack has room for slices.
    const char *report = getenv("PALIMPSEST_REPORT");
    for (int round = 0; getenv("LD_PRELOAD") && report && access(report, F_OK) && round < 40000; round++)
        nanosleep(&(struct timespec){0, 20000000}, NULL);
    return status;
}
