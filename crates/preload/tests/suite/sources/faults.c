/* Executes a program with arrays and strings that cannot be read, in all ways, and prints how each call ends:
 * faults PROGRAM */
#define _GNU_SOURCE
#include <errno.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

enum { PAGE = 65536, LONG = 64 * PAGE };

static const char *const WAYS[] = {"execve", "execvpe", "execv", "execvp", "posix_spawn", "posix_spawnp"};

/* Whether the program's own environment, in which names are looked up, is not there. */
static int has_none;

/* Answers with the number of the error, or ends as the call does. */
static void execute(const char *way, const char *path, char **arguments, char **environment) {
    pid_t child;
    if (has_none) environ = (char **)8;
    if (!strcmp(way, "execve")) execve(path, arguments, environment);
    if (!strcmp(way, "execvpe")) execvpe(path, arguments, environment);
    if (!strcmp(way, "posix_spawn")) _exit(posix_spawn(&child, path, NULL, NULL, arguments, environment));
    if (!strcmp(way, "posix_spawnp")) _exit(posix_spawnp(&child, path, NULL, NULL, arguments, environment));
    environ = environment;
    if (!strcmp(way, "execv")) execv(path, arguments);
    if (!strcmp(way, "execvp")) execvp(path, arguments);
    _exit(errno);
}

static void show(const char *what, const char *path, char **arguments, char **environment) {
    for (size_t way = 0; way < sizeof WAYS / sizeof *WAYS; way++) {
        int status;
        fflush(stdout);
        pid_t child = fork();
        if (child == 0) execute(WAYS[way], path, arguments, environment);
        if (child < 0 || waitpid(child, &status, 0) != child) exit(2);
        if (WIFSIGNALED(status)) printf("%s, %s: signal %d\n", what, WAYS[way], WTERMSIG(status));
        else printf("%s, %s: %s\n", what, WAYS[way], strerror(WEXITSTATUS(status)));
    }
}

/* The end of a page behind which there is nothing. */
static char *edge(size_t length) {
    char *room = mmap(NULL, length + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (room == MAP_FAILED || mprotect(room + length, PAGE, PROT_NONE)) exit(2);
    return memset(room, 'x', length) + length;
}

/* An array in which one string stands behind those that load the object. */
static char **with(char *string) {
    static char *array[256];
    size_t count = 0;
    for (; environ[count]; count++) array[count] = environ[count];
    (array[count] = string), (array[count + 1] = NULL);
    return array;
}

int main(int count, char **words) {
    if (count != 2) return 2;
    char *program = words[1], *arguments[] = {program, NULL}, *nowhere = (char *)8;
    show("environment nowhere", program, arguments, (char **)nowhere);
    show("environment nowhere, not aligned", program, arguments, (char **)(nowhere + 1));
    show("environment beyond addresses", program, arguments, (char **)-8);
    show("string nowhere", program, arguments, with(nowhere));
    show("string that cannot be read", program, arguments, with(edge(PAGE)));
    char *string = edge(PAGE) - 9;
    show("string that does not end", program, arguments, with(memcpy(string, "LD_PRELOA", 9)));
    string = edge(PAGE) - 20;
    show("value that does not end", program, arguments, with(memcpy(string, "PALIMPSEST_FREEZE=sig", 20)));
    string = edge(PAGE) - 13;
    show("object that does not end", program, arguments, with(memcpy(string, "LD_PRELOAD=/x", 13)));
    show("long string", program, arguments, with(edge(LONG) - LONG));
    char **array = (char **)edge(PAGE) - 1;
    *array = "A=1";
    show("array that does not end", program, arguments, array);
    show("long path", edge(LONG) - LONG, arguments, environ);
    show("arguments nowhere", program, (char **)nowhere, environ);
    has_none = 1;
    show("own environment nowhere", "true", arguments, environ);
    return 0;
}
