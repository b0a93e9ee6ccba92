// Waits, while another thread installs a filter for all threads that ends the program for calls that it does not make.
//
//     confined_from_outside slices|wait   when: once slices are under way, or in the wait after the last one

#define _GNU_SOURCE
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MEMORY = 8 << 20 };

static int ends[2];
static const char *when;

#define KILL(call) \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_##call, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS)

// Whether slices are under way: a file shows some of the memory.
static int is_begun(void) {
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[4200];
    int found = 0;
    while (!found && fgets(line, sizeof line, maps)) found = strstr(line, "palimpsest-frozen") != NULL;
    fclose(maps);
    return found;
}

// Whether the freeze is done and the main thread waits, by a call in place of its own.
static int is_waiting(void) {
    if (access(getenv("PALIMPSEST_REPORT"), F_OK)) return 0;
    char path[64];
    snprintf(path, sizeof path, "/proc/self/task/%d/syscall", getpid());
    FILE *call = fopen(path, "r");
    long number = -1;
    // A kernel that does not tell, or a main thread that runs just now.
    if (call) fscanf(call, "%ld", &number), fclose(call);
    return !call || number == SYS_ppoll;
}

static void *confine(void *unused) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        KILL(epoll_pwait), KILL(rt_sigpending), KILL(ioctl), KILL(openat), KILL(msync),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {sizeof code / sizeof *code, code};
    while (getenv("LD_PRELOAD") && !(strcmp(when, "wait") ? is_begun() : is_waiting())) {}
    if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &filter)) _exit(77);
    write(ends[1], "x", 1);
    return NULL;
}

int main(int count, char **arguments) {
    if (count < 2) return 1;
    when = arguments[1];
    unsigned char *memory = mmap(NULL, MEMORY, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) return 1;
    memset(memory, 1, MEMORY);
    if (!fork()) _exit(0);
    wait(NULL);
    struct epoll_event event = {.events = EPOLLIN};
    int efd = epoll_create1(0);
    pthread_t thread;
    if (pipe(ends) || epoll_ctl(efd, EPOLL_CTL_ADD, ends[0], &event) || pthread_create(&thread, NULL, confine, NULL))
        return 2;
    printf("%d\n", epoll_wait(efd, &event, 1, -1));
    char byte;
    read(ends[0], &byte, 1);
    for (int round = 0; round < 10; round++)
        if (epoll_wait(efd, &event, 1, 5)) return 3;
    pthread_join(thread, NULL);
    for (size_t at = 0; at < MEMORY; at += 4096)
        if (memory[at] != 1) return 4;
    printf("waited\n");
    fflush(stdout);
    _exit(0);
}
