/* A program with 8 MiB of text: in it lie whole huge pages wherever it is loaded. Prints whether its main function is
   in a memory file, then lets a child and threads run through the text. With an argument it only asks the kernel for
   huge pages of its file, and prints how many KiB of the text those map. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* A function at every 64 KiB. */
__asm__(".text\n.p2align 12\n.globl big\n.type big,@function\nbig:\n.rept 128\n.byte 0\n.org .+65535\n.endr\n");

extern const char big[];

static unsigned sum(void)
{
    unsigned all = 0;
    for (unsigned at = 0; at < 128 * 65536; at += 4096)
        all += (unsigned char)big[at] + 1;
    return all;
}

static void *thread(void *unused)
{
    (void)unused;
    return sum() == 2048 ? "right" : "wrong";
}

static int collapse(void)
{
    char line[512];
    unsigned long first = ((unsigned long)big + 2097151) & -2097152UL;
    unsigned long last = (unsigned long)(big + 8388608) & -2097152UL;
    unsigned long all = 0, size;
    sum();
    /* MADV_COLLAPSE. */
    if (madvise((void *)first, last - first, 25) != 0)
        perror("madvise");
    sum();
    FILE *maps = fopen("/proc/self/smaps", "r");
    while (maps && fgets(line, sizeof line, maps))
        if (sscanf(line, "FilePmdMapped: %lu", &size) == 1 || sscanf(line, "ShmemPmdMapped: %lu", &size) == 1)
            all += size;
    printf("%lu\n", all);
    return 0;
}

int main(int count, char **arguments)
{
    (void)arguments;
    if (count > 1)
        return collapse();
    char line[512];
    int in_memory = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps)) {
        unsigned long start, end;
        char rights[5];
        if (sscanf(line, "%lx-%lx %4s", &start, &end, rights) == 3 && strcmp(rights, "r-xp") == 0)
            in_memory |= strstr(line, "/memfd:palimpsest-constant") != NULL;
    }
    printf("text in memory: %d\n", in_memory);
    pthread_t other;
    void *answer = "none";
    pthread_create(&other, NULL, thread, NULL);
    pthread_join(other, &answer);
    printf("thread: %s\n", (char *)answer);
    fflush(stdout);
    if (fork() == 0)
        _exit(sum() == 2048 ? 0 : 1);
    int status = -1;
    wait(&status);
    printf("child: %d\n", status);
    return 0;
}
