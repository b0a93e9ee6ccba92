/* A program with 8 MiB of text at the same place in huge pages as in its file, if it is linked with -no-pie. Prints
   which file its text is mapped from, and which descriptors of copies it has, a child has, and it keeps after it has
   executed itself. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

__asm__(".text\n.p2align 12\n.globl big\nbig:\n.rept 2048\nret\n.byte 1\n.p2align 12\n.endr\n");

extern char big[];

static void text(void)
{
    char line[512];
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps)) {
        unsigned long start, end, inode;
        if (sscanf(line, "%lx-%lx %*s %*s %*s %lu", &start, &end, &inode) == 3 && start <= (unsigned long)big + 0x400000
            && (unsigned long)big + 0x400000 < end)
            printf("text: %lu %s\n", inode, strstr(line, "/memfd:palimpsest-constant") ? "shared" : "own");
    }
    fflush(stdout);
}

static void descriptors(const char *who)
{
    int copies = 0, writable = 0;
    for (int number = 0; number < 4096; number++) {
        char path[64], target[256] = "";
        snprintf(path, sizeof path, "/proc/self/fd/%d", number);
        if (readlink(path, target, sizeof target - 1) > 0 && strstr(target, "palimpsest")) {
            copies++;
            writable += (fcntl(number, F_GETFL) & O_ACCMODE) != O_RDONLY;
        }
    }
    printf("%s: %d descriptors, %d can write\n", who, copies, writable);
    fflush(stdout);
}

int main(int count, char **arguments)
{
    if (count > 1 && strcmp(arguments[1], "executed") == 0) {
        descriptors("executed");
        return 0;
    }
    for (int number = 0; number < 2048; number++)
        ((void (*)(void))(big + number * 4096))();
    text();
    if (count > 1 && strcmp(arguments[1], "wait") == 0) {
        getchar();
        return 0;
    }
    descriptors("program");
    if (fork() == 0) {
        descriptors("child");
        _exit(0);
    }
    wait(NULL);
    unsetenv("LD_PRELOAD");
    execl("/proc/self/exe", arguments[0], "executed", (char *)NULL);
    return 1;
}
