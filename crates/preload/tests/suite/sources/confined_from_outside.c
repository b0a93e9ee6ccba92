// Waits, while another thread installs a filter for all threads that ends the program for calls that it does not make.
//
//     confined_from_outside slices|wait WAIT   when: once slices are under way, or in the wait after the last one
//     confined_from_outside children           children of another thread do so, once slices are under way

#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MEMORY = 8 << 20 };

static int ends[2], efd;
static const char *when, *how;
static pthread_t sleeper;
static volatile int is_awake;

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
    return !call || number == SYS_ppoll || number == SYS_pselect6;
}

static void handle(int signal) {
    (void)signal;
}

// Waits for the pipe, or so long at least; returns how many are ready. A sleep is ended by a signal.
static int wait_for(int millis) {
    const struct timespec exact = {millis < 0 ? INT64_MAX : 0, millis < 0 ? 0 : millis * 1000000};
    const struct timespec *limit = millis < 0 ? NULL : &exact;
    struct epoll_event event;
    struct pollfd one = {.fd = ends[0], .events = POLLIN};
    struct timeval time = {millis / 1000, millis % 1000 * 1000};
    fd_set set;
    sigset_t none;
    sigemptyset(&none);
    FD_ZERO(&set);
    FD_SET(ends[0], &set);
    if (!strcmp(how, "epoll_wait")) return epoll_wait(efd, &event, 1, millis);
    if (!strcmp(how, "epoll_pwait")) return epoll_pwait(efd, &event, 1, millis, &none);
    if (!strcmp(how, "poll")) return poll(&one, 1, millis);
    if (!strcmp(how, "ppoll")) return ppoll(&one, 1, limit, &none);
    if (!strcmp(how, "nanosleep")) return nanosleep(&exact, NULL) ? errno == EINTR : 0;
    int ready = strcmp(how, "pselect") ? select(ends[0] + 1, &set, NULL, NULL, millis < 0 ? NULL : &time)
                                       : pselect(ends[0] + 1, &set, NULL, NULL, limit, &none);
    return ready == FD_ISSET(ends[0], &set) ? ready : 9;
}

static void *confine(void *unused) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        KILL(rt_sigpending), KILL(ioctl), KILL(openat), KILL(msync), KILL(process_vm_readv), KILL(process_vm_writev),
        KILL(epoll_pwait),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {sizeof code / sizeof *code, code};
    // That is the program's own.
    if (!strcmp(how, "epoll_pwait")) code[sizeof code / sizeof *code - 3].k = SYS_msync;
    for (time_t end = time(NULL) + 300; getenv("LD_PRELOAD") && !(strcmp(when, "wait") ? is_begun() : is_waiting());)
        if (time(NULL) > end) _exit(76);
    if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &filter)) _exit(77);
    while (!strcmp(how, "nanosleep") && !is_awake) {
        pthread_kill(sleeper, SIGUSR1);
        nanosleep(&(struct timespec){0, 10000000}, NULL);
    }
    write(ends[1], "x", 1);
    return NULL;
}

// Children have no main thread for which they would have to wait: that takes thousands of naps.
static void *fork_confined(void *unused) {
    struct sock_filter code[] = {BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    struct sock_fprog filter = {1, code};
    for (time_t end = time(NULL) + 300; getenv("LD_PRELOAD") && !is_begun();)
        if (time(NULL) > end) _exit(76);
    for (int round = 0; round < 50; round++) {
        int status = 0;
        pid_t child = fork();
        if (!child) {
            if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &filter)) _exit(77);
            struct rusage used;
            getrusage(RUSAGE_SELF, &used);
            _exit(used.ru_nvcsw > 2000 ? 5 : 0);
        }
        waitpid(child, &status, 0);
        if (status) _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 6);
    }
    write(ends[1], "x", 1);
    return NULL;
}

int main(int count, char **arguments) {
    if (count < 2) return 1;
    when = arguments[1];
    how = count > 2 ? arguments[2] : "epoll_wait";
    void *(*other)(void *) = strcmp(when, "children") ? confine : fork_confined;
    unsigned char *memory = mmap(NULL, MEMORY, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) return 1;
    memset(memory, 1, MEMORY);
    if (!fork()) _exit(0);
    wait(NULL);
    struct epoll_event event = {.events = EPOLLIN};
    sleeper = pthread_self();
    sigaction(SIGUSR1, &(struct sigaction){.sa_handler = handle}, NULL);
    efd = epoll_create1(0);
    pthread_t thread;
    if (pipe(ends) || epoll_ctl(efd, EPOLL_CTL_ADD, ends[0], &event) || pthread_create(&thread, NULL, other, NULL))
        return 2;
    int ready;
    // To be held for a slice ends a wait.
    do ready = wait_for(-1);
    while (ready < 0 && errno == EINTR);
    is_awake = 1;
    printf("%d\n", ready);
    pthread_join(thread, NULL);
    char byte;
    read(ends[0], &byte, 1);
    for (int round = 0; round < 10; round++)
        if (wait_for(5)) return 3;
    for (size_t at = 0; at < MEMORY; at += 4096)
        if (memory[at] != 1) return 4;
    printf("waited\n");
    fflush(stdout);
    _exit(0);
}
