// What the kernel takes to fork processes of some shapes, without Palimpsest: who takes turns are children of this
// program, each of one shape, which fork, let the child end, and wait for it. Microseconds, the lower quartile and the
// least of so many turns. cc -O2 shapes.c && nice -n -19 ./a.out 4000
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const char *names[] = {
    "empty",
    "4 GiB in 8 files",
    "the same, and 10 small mappings",
    "the same, a page written by the parent before each fork",
    "the same, and three pages of code that the child touches first",
    "512 MiB in 16 files, and 10 small mappings",
};
enum { SHAPES = sizeof names / sizeof *names, GIB = 1 << 30 };

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e6 + time.tv_nsec / 1e3;
}

static void *file(size_t len) {
    int fd = memfd_create("shape", 0);
    if (fd < 0 || ftruncate(fd, len)) abort();
    void *at = mmap(0, len, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    close(fd);
    return at;
}

// Answers each byte with the time of a fork, and of it with exit and wait.
static void serve(int shape, int from, int to) {
    int files = shape == 0 ? 0 : shape == 5 ? 16 : 8;
    for (int i = 0; i < files; i++) file(shape == 5 ? 32 << 20 : GIB / 2);
    // Not joined by the kernel: other rights, and gaps.
    for (int i = 0; i < (shape >= 2 ? 10 : 0); i++) file(4096 * (i + 2));
    volatile char *page = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    // Far enough apart that the kernel does not map them together (64 KiB).
    volatile char *code = file(1 << 20);
    char byte;
    while (read(from, &byte, 1) == 1) {
        if (shape == 3 || shape == 4) page[0]++;
        double times[2], start = now();
        pid_t child = fork();
        if (child == 0) {
            if (shape == 4)
                for (int i = 0; i < 3; i++) (void)code[i * (256 << 10)];
            _exit(0);
        }
        times[0] = now() - start;
        int status;
        waitpid(child, &status, 0);
        times[1] = now() - start;
        if (write(to, times, sizeof times) != sizeof times) abort();
    }
    _exit(0);
}

static int compare(const void *left, const void *right) {
    double a = *(double *)left, b = *(double *)right;
    return (a > b) - (a < b);
}

int main(int count, char **arguments) {
    int turns = count > 1 ? atoi(arguments[1]) : 2000;
    int ask[SHAPES][2], tell[SHAPES][2];
    for (int i = 0; i < SHAPES; i++) {
        if (pipe(ask[i]) || pipe(tell[i])) abort();
        if (fork() == 0) {
            close(ask[i][1]);
            serve(i, ask[i][0], tell[i][1]);
        }
        close(ask[i][0]);
    }
    double *forks = calloc(turns * SHAPES, 8), *wholes = calloc(turns * SHAPES, 8);
    for (int turn = 0; turn < turns; turn++)
        for (int i = 0; i < SHAPES; i++) {
            double times[2];
            if (write(ask[i][1], "", 1) != 1 || read(tell[i][0], times, sizeof times) != sizeof times) abort();
            forks[i * turns + turn] = times[0];
            wholes[i * turns + turn] = times[1];
        }
    for (int i = 0; i < SHAPES; i++) {
        double *fork = forks + i * turns, *whole = wholes + i * turns;
        qsort(fork, turns, 8, compare);
        qsort(whole, turns, 8, compare);
        double base = i ? forks[turns / 4] : fork[turns / 4], all = i ? wholes[turns / 4] : whole[turns / 4];
        printf("%-64s fork %5.1f (%5.1f) %4.2f  with exit and wait %5.1f (%5.1f) %4.2f\n", names[i], fork[turns / 4],
               fork[0], fork[turns / 4] / base, whole[turns / 4], whole[0], whole[turns / 4] / all);
    }
}
