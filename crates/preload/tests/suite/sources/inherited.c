// A program under a filter that was there before it was executed.
//
//     inherited kill|refuse   installs it, which ends whoever makes a call that the program does not make, or refuses
//                             the call, and executes itself, or the program that follows, with its arguments
//     inherited unit          the same, for calls that a unit of systemd may forbid: it ends whoever makes them
//     inherited files         the same, for memory files, and for `mincore`
//     inherited needed        the same, for a call that gathering makes, and for `mincore`
//     inherited works         maps much memory, forks and waits

#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { EACH = 4 << 20, COUNT = 12 };

#define ANSWER(call) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_##call, 0, 1), BPF_STMT(BPF_RET | BPF_K, action)

static int confines(const char *which, char **program) {
    unsigned action = strcmp(which, "refuse") ? SECCOMP_RET_KILL_PROCESS : SECCOMP_RET_ERRNO | EPERM;
    struct sock_filter unit[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        ANSWER(mincore), ANSWER(pkey_mprotect), ANSWER(seccomp), ANSWER(ptrace), ANSWER(mbind), ANSWER(move_pages),
        ANSWER(set_mempolicy), ANSWER(setrlimit), ANSWER(sched_setaffinity),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_filter files[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        ANSWER(mincore), ANSWER(memfd_create),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_filter needed[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        ANSWER(mincore), ANSWER(msync),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        ANSWER(getrusage), ANSWER(mincore), ANSWER(process_vm_readv), ANSWER(process_vm_writev), ANSWER(get_mempolicy),
#ifdef SYS_poll
        ANSWER(ppoll), ANSWER(epoll_pwait),
#endif
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {sizeof code / sizeof *code, code};
    if (!strcmp(which, "unit")) filter = (struct sock_fprog){sizeof unit / sizeof *unit, unit};
    if (!strcmp(which, "files")) filter = (struct sock_fprog){sizeof files / sizeof *files, files};
    if (!strcmp(which, "needed")) filter = (struct sock_fprog){sizeof needed / sizeof *needed, needed};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter)) return 77;
    execv(*program, program);
    return 3;
}

static int works(void) {
    for (int round = 0; round < COUNT; round++) {
        unsigned char *memory = mmap(NULL, EACH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) return 1;
        memset(memory, 1, EACH);
    }
    // At least six times, and until the report comes.
    const char *report = getenv("LD_PRELOAD") ? getenv("PALIMPSEST_REPORT") : NULL;
    for (int round = 0; round < 6 || report && access(report, F_OK) && round < 20000; round++) {
        pid_t child = fork();
        if (!child) _exit(0);
        int status;
        if (waitpid(child, &status, 0) != child || status) return 5;
        fd_set set;
        FD_ZERO(&set);
        struct timeval time = {0, 5000};
        if (poll(NULL, 0, 5) || nanosleep(&(struct timespec){0, 5000000}, NULL) || select(1, &set, NULL, NULL, &time))
            return 4;
    }
    puts("worked");
    return 0;
}

int main(int count, char **arguments) {
    if (count < 2) return 2;
    if (!strcmp(arguments[1], "works")) return works();
    char *own[] = {"/proc/self/exe", "works", NULL};
    return confines(arguments[1], count > 2 ? arguments + 2 : own);
}
