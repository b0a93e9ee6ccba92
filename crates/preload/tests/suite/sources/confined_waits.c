// Is frozen in slices, confines itself by a filter that ends it for any call that it does not make itself, and waits.
//
//     confined_waits self|child   who confines itself and waits

#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MEMORY = 64 << 20 };

#define KILL(call) \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_##call, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS)

static int confined(void) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        KILL(getpid), KILL(gettid), KILL(rt_sigpending), KILL(prlimit64), KILL(rt_sigprocmask), KILL(process_vm_readv),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {sizeof code / sizeof *code, code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter)) return 3;
    for (int round = 0; round < 10; round++) {
        fd_set set;
        FD_ZERO(&set);
        struct timeval time = {0, 5000};
        if (poll(NULL, 0, 5) || nanosleep(&(struct timespec){0, 5000000}, NULL) || select(1, &set, NULL, NULL, &time))
            return 4;
    }
    write(1, "waited\n", 7);
    return 0;
}

int main(int count, char **arguments) {
    unsigned char *memory = mmap(NULL, MEMORY, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (count < 2 || memory == MAP_FAILED) return 1;
    for (size_t at = 0; at < MEMORY; at += 4096) memory[at] = 1;
    if (!fork()) _exit(0);
    wait(NULL);
    if (!strcmp(arguments[1], "self")) return confined();
    pid_t child = fork();
    if (!child) _exit(confined());
    int status;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
