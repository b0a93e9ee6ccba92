/* Executes a program in one way, in a child, or in its own process if a word before says so:
 * executes [own] WAY PROGRAM [ARGUMENT...] */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <spawn.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static void die(const char *what) {
    perror(what);
    exit(1);
}

static const char *handled;
static char **handled_arguments;

static void handle(int signal) {
    (void)signal;
    execve(handled, handled_arguments, environ);
}

/* In a handler with a stack of its own. */
static void execute_in_handler(const char *program, char **arguments) {
    static char room[1 << 16];
    stack_t stack = {.ss_sp = room, .ss_size = sizeof room};
    struct sigaction action = {.sa_handler = handle, .sa_flags = SA_ONSTACK};
    (handled = program), (handled_arguments = arguments);
    if (!sigaltstack(&stack, NULL) && !sigaction(SIGUSR1, &action, NULL)) raise(SIGUSR1);
}

/* From here on a question whether a file is there ends this process. */
static void confine(void) {
    struct sock_filter lines[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_faccessat, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof lines / sizeof *lines, lines};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) die("filter");
}

static void execute(const char *way, const char *program, char **arguments) {
    if (!strcmp(way, "nowhere")) exit(execve((const char *)8, arguments, environ) != -1 || errno != EFAULT);
    if (!strcmp(way, "confined")) {
        confine();
        exit(execve("/nowhere", arguments, environ) != -1 || errno != ENOENT);
    }
    if (!strcmp(way, "handler")) execute_in_handler(program, arguments);
    if (!strcmp(way, "execve") || !strcmp(way, "vfork")) execve(program, arguments, environ);
    if (!strcmp(way, "execv")) execv(program, arguments);
    if (!strcmp(way, "execvp")) execvp(program, arguments);
    if (!strcmp(way, "execvpe")) execvpe(program, arguments, environ);
    if (!strcmp(way, "execl")) execl(program, arguments[0], arguments[1], arguments[2], NULL);
    if (!strcmp(way, "fexecve")) fexecve(open(program, O_RDONLY | O_CLOEXEC), arguments, environ);
    die(way);
}

static pid_t spawn(const char *way, const char *program, char **arguments) {
    pid_t child;
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    int error = -1;
    if (!strcmp(way, "posix_spawn")) error = posix_spawn(&child, program, NULL, NULL, arguments, environ);
    if (!strcmp(way, "posix_spawnp")) error = posix_spawnp(&child, program, &actions, NULL, arguments, environ);
    if (!strcmp(way, "elsewhere")) {
        /* From another folder than this process's. */
        const char *folder = getenv("FOLDER");
        posix_spawn_file_actions_addchdir_np(&actions, folder ? folder : "/");
        error = posix_spawn(&child, program, &actions, NULL, arguments, environ);
    }
    if (error > 0) die(way);
    return error ? -1 : child;
}

int main(int count, char **words) {
    if (count > 3 && !strcmp(words[1], "own")) execute(words[2], words[3], words + 3);
    if (count < 3) return 2;
    const char *way = words[1];
    pid_t child = spawn(way, words[2], words + 2);
    if (child < 0) child = strcmp(way, "vfork") ? fork() : vfork();
    if (child == 0) execute(way, words[2], words + 2);
    int status;
    return waitpid(child, &status, 0) == child && !status ? 0 : 1;
}
