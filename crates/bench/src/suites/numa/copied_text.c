/* Puts the text of the program into anonymous memory with huge pages before its main function: the calls that iodlr
   makes, except that no page is ever writable and executable. Preloaded. A process that cannot do it ends. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define HUGE (2UL << 20)

static void refuse(const char *call) {
    perror(call);
    _exit(3);
}

__attribute__((constructor)) static void copy_text(void) {
    char line[4096];
    FILE *maps = fopen("/proc/self/maps", "r");
    unsigned long start, end;
    if (!maps)
        refuse("maps");
    while (fgets(line, sizeof line, maps)) {
        char rights[5];
        if (sscanf(line, "%lx-%lx %4s", &start, &end, rights) != 3 || strcmp(rights, "r-xp"))
            continue;
        start = (start + HUGE - 1) & ~(HUGE - 1);
        end &= ~(HUGE - 1);
        /* The first executable mapping is the program's. */
        break;
    }
    fclose(maps);
    if (start >= end)
        return;
    size_t length = end - start;
    char *room = mmap(NULL, length + HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (room == MAP_FAILED)
        refuse("mmap");
    char *copy = (char *)(((unsigned long)room + HUGE - 1) & ~(HUGE - 1));
    if (madvise(copy, length, MADV_HUGEPAGE))
        refuse("madvise");
    memcpy(copy, (void *)start, length);
    if (mprotect(copy, length, PROT_READ | PROT_EXEC))
        refuse("mprotect");
    if (mremap(copy, length, length, MREMAP_MAYMOVE | MREMAP_FIXED, (void *)start) == MAP_FAILED)
        refuse("mremap");
}
