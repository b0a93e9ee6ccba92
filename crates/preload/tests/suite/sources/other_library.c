// Uses the functions that the object defines, and what they need, in a program of another C library.
#define _GNU_SOURCE
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define LENGTH (4 << 20)

int main(int count, char **arguments) {
    char line[4096];
    int is_loaded = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps))
        is_loaded |= strstr(line, "libpalimpsest_preload.so") != NULL;
    char *memory = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return 2;
    memset(memory, 7, LENGTH);
    pid_t child = fork();
    if (child == 0) {
        if (count > 1)
            execl(arguments[0], arguments[0], (char *)NULL);
        _exit(memory[LENGTH - 1] == 7 ? 0 : 3);
    }
    int status = -1;
    if (waitpid(child, &status, 0) != child || status != 0)
        return 4;
    explicit_bzero(memory, 4096);
    if (madvise(memory + 4096, 4096, MADV_DONTNEED) || memory[0] || memory[4096] || memory[8192] != 7)
        return 5;
    struct timespec time = { 0, 1000 };
    if (poll(NULL, 0, 1) || nanosleep(&time, NULL) || munmap(memory, LENGTH))
        return 6;
    printf("%s, %d arguments\n", is_loaded ? "loaded" : "not loaded", count);
    return 0;
}
