// Memory that is to be gathered: which mappings are in huge pages from the start, and what a deputy leaves behind.
#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sched.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MIB = 1 << 20, MEMORY = 64 * MIB, MOST_SECONDS = 300 };

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

// What `smaps` tells of the mapping at this address in the line of this name.
static const char *told(const void *address, const char *name) {
    static char line[4096], found[4096];
    int is_here = 0;
    found[0] = 0;
    FILE *file = fopen("/proc/self/smaps", "r");
    while (fgets(line, sizeof line, file)) {
        unsigned long start, end;
        if (sscanf(line, "%lx-%lx ", &start, &end) == 2 && !strstr(line, "kB"))
            is_here = start <= (uintptr_t)address && (uintptr_t)address < end;
        if (is_here && !strncmp(line, name, strlen(name))) strcpy(found, line + strlen(name));
    }
    fclose(file);
    return found;
}

static int has(const void *address, const char *flag) { return strstr(told(address, "VmFlags:"), flag) != NULL; }

static long huge_kilobytes(const void *address) { return atol(told(address, "AnonHugePages:")); }

// Whether `map` calls the kernel by `syscall`.
static int is_bare;

static void *map(size_t length, int rights, int kind) {
    kind |= MAP_PRIVATE | MAP_ANONYMOUS;
    void *made = is_bare ? (void *)syscall(SYS_mmap, NULL, length, rights, kind, -1, 0)
                         : mmap(NULL, length, rights, kind, -1, 0);
    if (made == MAP_FAILED) exit(2);
    const int of_this_call = errno;
    // A neighbour of the same kind would become one mapping with this one. Where something is, nothing else comes.
    mmap((char *)made - 4096, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    mmap((char *)made + length, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    // Where something was, EEXIST.
    errno = of_this_call;
    return made;
}

static int advice(void) {
    const int data = PROT_READ | PROT_WRITE;
    char *large = map(8 * MIB, data, 0), *reserved = map(8 * MIB, data, MAP_NORESERVE), *small = map(MIB, data, 0);
    char *none = map(8 * MIB, PROT_NONE, 0), *stack = map(8 * MIB, data, MAP_STACK), *own = map(8 * MIB, data, 0);
    if (madvise(own, 8 * MIB, MADV_NOHUGEPAGE)) return 2;
    printf("large %d reserved %d small %d none %d stack %d own %d %d\n", has(large, " hg"), has(reserved, " hg"),
           has(small, " hg"), has(none, " hg"), has(stack, " hg"), has(own, " hg"), has(own, " nh"));
    return 0;
}

static int holds(const char *memory, size_t length) {
    for (size_t at = 0; at < length; at += 4096)
        if (memory[at] != (char)(at >> 12 | 1)) return 0;
    return 1;
}

// Extends memory by a piece directly behind it, and moves both by one call: to a place of the caller's, or with a new
// length to one of the kernel's. If that is refused, everything is as before.
static int extended(size_t more) {
    const int data = PROT_READ | PROT_WRITE, kind = MAP_PRIVATE | MAP_ANONYMOUS, fixed = kind | MAP_FIXED;
    const size_t large = 8 * MIB, both = large + more;
    for (int grows = 0; grows < 2; grows++) {
        char *room = map(both + 4096, PROT_NONE, 0), *there = map(both, PROT_NONE, 0);
        char *memory = mmap(room, large, data, fixed, -1, 0);
        if (memory != room || mmap(room + large, more, data, fixed, -1, 0) != room + large) return 2;
        for (size_t at = 0; at < both; at += 4096) memory[at] = (char)(at >> 12 | 1);
        char *moved = grows ? mremap(memory, both, both + MIB, MREMAP_MAYMOVE)
                            : mremap(memory, both, both, MREMAP_MAYMOVE | MREMAP_FIXED, there);
        int is_refused = moved == MAP_FAILED && errno == EFAULT;
        if (moved == MAP_FAILED && !is_refused) return 3;
        printf("%s %s %s\n", grows ? "grown" : "moved", is_refused ? "refused" : "done",
               holds(is_refused ? memory : moved, both) ? "whole" : "lost");
    }
    return 0;
}

// Whether the kernel makes a huge page here of base pages that are populated: otherwise a deputy has nothing to do.
static int is_collapsible(void) {
    char *memory = map(4 * MIB, PROT_READ | PROT_WRITE, 0);
    char *piece = (char *)(((uintptr_t)memory + 2 * MIB - 1) & -(uintptr_t)(2 * MIB));
    memset(piece, 7, 2 * MIB);
    int answer = madvise(piece, 2 * MIB, MADV_COLLAPSE);
    munmap(memory, 4 * MIB);
    return answer == 0;
}

// Fills a mapping of 8 MiB before it is known that this program fills what it maps, and maps more; forks before that,
// if asked to. Tells how much of the first is in huge pages.
static int earlier(int forks) {
    // The peak of whoever has executed this program counts as this program's: above it, the peak grows.
    map(256 * MIB, PROT_READ | PROT_WRITE, MAP_POPULATE);
    if (!is_collapsible()) return puts("skipped: MADV_COLLAPSE makes no huge page here"), 0;
    char *first = map(8 * MIB, PROT_READ | PROT_WRITE, 0), *half = map(8 * MIB, PROT_READ | PROT_WRITE, 0);
    memset(first, 7, 8 * MIB);
    for (size_t place = 0; place < 8 * MIB; place += MIB) memset(half + place, 7, MIB - 128 * 1024);
    if (huge_kilobytes(first) > 0) return puts("skipped: the kernel makes huge pages by itself"), 0;
    if (forks) {
        pid_t child = fork();
        if (child == 0) _exit(0);
        if (waitpid(child, NULL, 0) != child) return 2;
    }
    for (int number = 0; number < 8; number++) memset(map(4 * MIB, PROT_READ | PROT_WRITE, 0), 7, 4 * MIB);
    if (!is_collapsible()) return puts("skipped: MADV_COLLAPSE makes no huge page here any more"), 0;
    printf("%s, %s\n", huge_kilobytes(first) > 0 ? "huge" : "base", huge_kilobytes(half) > 0 ? "huge" : "base");
    return 0;
}

// Stays on this CPU: the peak lacks pages that the kernel has counted for single CPUs (since Linux 6.2).
static void stay(void) {
    cpu_set_t only;
    CPU_ZERO(&only);
    CPU_SET(sched_getcpu(), &only);
    // Who may not, is counted for more of them.
    sched_setaffinity(0, sizeof only, &only);
}

// How many of these mappings are to be huge, of which each part of this length is touched.
static int used(size_t part) {
    enum { MANY = 12, LENGTH = 4 * MIB };
    stay();
    // The peak of whoever has executed this program counts as this program's: above it, the peak grows.
    char *before = map(256 * MIB, PROT_READ | PROT_WRITE, MAP_POPULATE);
    int huge = before[0];
    for (int number = 0; number < MANY; number++) {
        char *made = map(LENGTH, PROT_READ | PROT_WRITE, 0);
        for (size_t place = 0; place < LENGTH; place += part) made[place] = 1;
        huge += has(made, " hg");
    }
    printf("%d of %d huge\n", huge, MANY);
    return 0;
}

// Whether mappings that are made leave `errno` as it is.
static int errnos(void) {
    int after[4];
    for (int number = 0; number < 4; number++) {
        errno = 7;
        map(4 * MIB, PROT_READ | PROT_WRITE, MAP_NORESERVE);
        after[number] = errno;
    }
    printf("%d %d %d %d\n", after[0], after[1], after[2], after[3]);
    return 0;
}

// Forks once, and waits for nothing but the child; or twice.
static int forks(int times) {
    memset(map(MEMORY, PROT_READ | PROT_WRITE, 0), 7, MEMORY);
    for (int number = 0; number < times; number++) {
        pid_t child = fork();
        if (child == 0) _exit(0);
        if (waitpid(child, NULL, 0) != child) return 2;
    }
    printf("done\n");
    return 0;
}

// How many children this process has, whether it knows them or not.
static int children(void) {
    char text[4096];
    FILE *file = fopen("/proc/thread-self/children", "r");
    if (!file) return -1;
    size_t length = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[length] = 0;
    int count = 0;
    for (char *word = strtok(text, " "); word; word = strtok(NULL, " ")) count++;
    return count;
}

// Lets this process end by its next wait for a child.
static int confine(void) {
    struct sock_filter lines[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_wait4, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {sizeof lines / sizeof *lines, lines};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter, 0, 0);
}

static int executed(char **arguments) {
    if (!is_collapsible()) return puts("skipped: MADV_COLLAPSE makes no huge page here"), 0;
    // Has its pages when it is mapped, so that they are no huge pages unless the kernel makes these by itself.
    char *memory = map(MEMORY, PROT_READ | PROT_WRITE, MAP_POPULATE);
    memset(memory, 7, MEMORY);
    if (huge_kilobytes(memory) > 0) return puts("skipped: the kernel makes huge pages by itself"), 0;
    pid_t child = fork();
    if (child == 0) _exit(0);
    if (waitpid(child, NULL, 0) != child) return 2;
    // A deputy that a busy machine leaves no time is ended, and the next one comes later each time.
    for (time_t end = time(NULL) + MOST_SECONDS; time(NULL) < end;) {
        // Long enough for one slice, and too short for another look after it, in which the deputy may be over.
        poll(NULL, 0, 2);
        if (children() > 0) {
            if (waitpid(-1, NULL, WNOHANG) != -1) return 3;
            char *next[] = {arguments[0], "count", NULL};
            if (!strcmp(arguments[1], "confined") && confine()) return 4;
            if (!strcmp(arguments[1], "bare")) syscall(SYS_execve, "/proc/self/exe", next, environ);
            execv("/proc/self/exe", next);
            return 2;
        }
    }
    if (!is_collapsible()) return puts("skipped: MADV_COLLAPSE makes no huge page here any more"), 0;
    printf("no deputy\n");
    return 0;
}

int main(int count, char **arguments) {
    if (count < 2) return 2;
    is_bare = !strcmp(arguments[1], "bare-advice");
    if (is_bare || !strcmp(arguments[1], "advice")) return advice();
    if (!strcmp(arguments[1], "small")) return extended(64 << 10);
    if (!strcmp(arguments[1], "large")) return extended(4 * MIB);
    if (!strcmp(arguments[1], "earlier")) return earlier(0);
    if (!strcmp(arguments[1], "forked")) return earlier(1);
    if (!strcmp(arguments[1], "dense")) return used(4096);
    if (!strcmp(arguments[1], "sparse")) return used(2 * MIB);
    if (!strcmp(arguments[1], "errno")) return errnos();
    if (!strcmp(arguments[1], "once")) return forks(1);
    if (!strcmp(arguments[1], "twice")) return forks(2);
    if (strcmp(arguments[1], "count")) return executed(arguments);
    printf("%d children\n", children());
    return 0;
}
