/* Confines itself and executes a program: `confined mdwe CMD…` lets no memory become executable later (PR_SET_MDWE);
   `confined NUMBER CMD…` has the system call of that number fail with EPERM. Ends with 77 if the kernel cannot. */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#ifndef PR_SET_MDWE
#define PR_SET_MDWE 65
#endif

int main(int count, char **arguments)
{
    if (count < 3)
        return 2;
    if (strcmp(arguments[1], "mdwe") == 0) {
        if (prctl(PR_SET_MDWE, 1, 0, 0, 0) != 0)
            return 77;
    } else {
        struct sock_filter lines[] = {
            BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)atoi(arguments[1]), 0, 1),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        };
        struct sock_fprog filter = {sizeof lines / sizeof *lines, lines};
        if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0)
            return 77;
    }
    execvp(arguments[2], arguments + 2);
    return 3;
}
