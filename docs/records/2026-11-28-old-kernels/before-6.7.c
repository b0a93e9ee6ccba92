#include <stddef.h>
#include <errno.h>
#include <stdio.h>
#include <unistd.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <linux/seccomp.h>
#include <linux/filter.h>
int main(int c, char **v) {
  struct sock_filter f[] = {
    BPF_STMT(BPF_LD|BPF_W|BPF_ABS, 0),
    BPF_JUMP(BPF_JMP|BPF_JEQ|BPF_K, SYS_ioctl, 0, 4),
    BPF_STMT(BPF_LD|BPF_W|BPF_ABS, 24),
    BPF_JUMP(BPF_JMP|BPF_JEQ|BPF_K, 0xc0606610, 1, 0),
    BPF_JUMP(BPF_JMP|BPF_JEQ|BPF_K, 0xc0686611, 0, 1),
    BPF_STMT(BPF_RET|BPF_K, SECCOMP_RET_ERRNO|ENOTTY),
    BPF_STMT(BPF_RET|BPF_K, SECCOMP_RET_ALLOW),
  };
  struct sock_fprog p = { sizeof f/sizeof *f, f };
  if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &p)) { perror("seccomp"); return 1; }
  execvp(v[1], v+1); perror(v[1]); return 1; }
