/* A program with 8 MiB of text that is read, and never executed. Prints how much of its text is mapped by huge pages of
   its file, in KiB, and its arguments' number. With the argument "collapse" it asks the kernel for them itself. */
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

__asm__(".text\n.p2align 12\n.globl big\n.type big,@function\nbig:\n.rept 128\n.byte 0\n.org .+65535\n.endr\n");

extern const char big[];

int main(int count, char **arguments)
{
    char line[512];
    int own = 0;
    unsigned long huge = 0, all = 0;
    for (unsigned long at = 0; at < 128 * 65536; at += 4096)
        all += (unsigned char)big[at] + 1;
    /* MADV_COLLAPSE is 25. */
    unsigned long first = ((unsigned long)big + 2097151) & -2097152UL;
    unsigned long last = (unsigned long)(big + 8388608) & -2097152UL;
    if (count > 1 && strcmp(arguments[1], "collapse") == 0 && madvise((void *)first, last - first, 25) != 0)
        perror("madvise");
    FILE *maps = fopen("/proc/self/smaps", "r");
    while (maps && fgets(line, sizeof line, maps)) {
        unsigned long start, end, size;
        char rights[5];
        if (sscanf(line, "%lx-%lx %4s", &start, &end, rights) == 3)
            own = start <= (unsigned long)big + 4194304 && (unsigned long)big + 4194304 < end;
        else if (own && sscanf(line, "FilePmdMapped: %lu", &size) == 1)
            huge += size;
        else if (own && sscanf(line, "ShmemPmdMapped: %lu", &size) == 1)
            huge += size;
    }
    printf("%lu KiB in huge pages, %d arguments, %s\n", huge, count, all == 2048 ? "right" : "wrong");
    return 3;
}
