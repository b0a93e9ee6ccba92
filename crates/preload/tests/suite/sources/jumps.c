/* Is interrupted whenever a program's file is read that is about to be executed, and leaves the handler by a jump:
 * jumps PROGRAM
 * The program must be in a folder of its own. Ends with 77 if nobody tells of reads. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern char **environ;

enum { ROUNDS = 20 };

static sigjmp_buf back;
static volatile int jumps;

static void handle(int signal) {
    (void)signal;
    jumps++;
    siglongjmp(back, 1);
}

/* Opens nothing that stays open: each call is refused after the object has looked at the file. */
static void execute(int round, char *program) {
    char *arguments[] = {program, NULL};
    pid_t child;
    posix_spawn_file_actions_t actions;
    if (sigsetjmp(back, 1)) return;
    if (round % 2) {
        execve(program, (char **)8, environ);
    } else {
        posix_spawn_file_actions_init(&actions);
        posix_spawn_file_actions_addopen(&actions, 0, "/nowhere", O_RDONLY, 0);
        posix_spawn(&child, program, &actions, NULL, arguments, environ);
    }
}

/* Returns the lowest number that is free. */
static int next_descriptor(void) {
    int descriptor = open("/dev/null", O_RDONLY);
    close(descriptor);
    return descriptor;
}

int main(int count, char **words) {
    if (count != 2) return 2;
    char *folder = dirname(strdup(words[1]));
    int watched = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    struct sigaction action = {.sa_handler = handle};
    sigaction(SIGUSR1, &action, NULL);
    if (watched < 0 || fcntl(watched, F_SETSIG, SIGUSR1)) return 77;
    if (fcntl(watched, F_NOTIFY, DN_ACCESS | DN_MULTISHOT)) return 77;
    int before = next_descriptor();
    for (int round = 0; round < ROUNDS; round++) execute(round, words[1]);
    fprintf(stderr, "%d jumps, the next descriptor was %d and is %d\n", jumps, before, next_descriptor());
    if (next_descriptor() != before) return 1;
    /* The signal itself must not get lost. */
    return jumps < ROUNDS / 2 ? 77 : 0;
}
