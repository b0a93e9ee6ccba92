// Waits in a handler whose stack is an array on the main stack, while slices are due, and tells whether what lies below
// that array is as before.

#define _GNU_SOURCE
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

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

static int handled_within(void) {
    struct frame frame;
    memset(frame.below, 0x5a, BELOW);
    stack_t stack = {.ss_sp = frame.stack, .ss_size = STACK};
    struct sigaction action = {.sa_handler = waits, .sa_flags = SA_ONSTACK};
    if (sigaltstack(&stack, NULL) || sigaction(SIGUSR1, &action, NULL) || raise(SIGUSR1)) return 3;
    stack.ss_flags = SS_DISABLE;
    if (sigaltstack(&stack, NULL)) return 3;
    int changed = 0;
    for (int at = 0; at < BELOW; at++) changed += ((volatile unsigned char *)frame.below)[at] != 0x5a;
    printf("%d bytes changed\n", changed);
    return 0;
}

int main(void) {
    unsigned char *memory = mmap(NULL, MEMORY, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return 1;
    for (size_t at = 0; at < MEMORY; at += 4096) memory[at] = 1;
    if (!fork()) _exit(0);
    wait(NULL);
    int status = handled_within();
    // Until the report comes: the main stack has room for slices.
    const char *report = getenv("PALIMPSEST_REPORT");
    for (int round = 0; getenv("LD_PRELOAD") && report && access(report, F_OK) && round < 40000; round++)
        nanosleep(&(struct timespec){0, 20000000}, NULL);
    return status;
}
