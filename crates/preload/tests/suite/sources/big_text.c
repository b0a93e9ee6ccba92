/* A program with 8 MiB of text: in it lie whole huge pages wherever it is loaded. Prints whether its main function is
   in a memory file, then lets a child and threads run through the text. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>
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

int main(void)
{
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
