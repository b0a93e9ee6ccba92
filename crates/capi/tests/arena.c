/* A C program with an arena: a child sees what was frozen, and each side has its own copy afterwards. */
#include <sys/wait.h>
#include <unistd.h>

#include "must.h"

#define LENGTH (8 << 20)

int main(void) {
    char *block = palimpsest_arena_malloc(LENGTH);
    MUST(block != NULL && palimpsest_arena_usable_size(block) >= LENGTH);
    memset(block, 7, LENGTH);
    MUST(palimpsest_arena_freeze() == 0);

    struct palimpsest_arena_stats stats = {.size = sizeof stats};
    MUST(palimpsest_arena_stats(&stats) == 0);
    MUST(stats.blocks == 1 && stats.frozen >= LENGTH && stats.refused == 0);

    pid_t child = fork();
    MUST(child >= 0);
    if (child == 0) {
        MUST(block[LENGTH - 1] == 7);
        block[0] = 8;
        palimpsest_arena_free(block);
        return 0;
    }
    int status;
    MUST(waitpid(child, &status, 0) == child && status == 0);
    MUST(block[0] == 7);

    /* What was written since is frozen again; what was not is left alone the next time.
     * Fails on: a plain freeze in its place. */
    size_t freezes = stats.freezes, copied = 1;
    MUST(palimpsest_arena_refreeze(&copied) == 0 && copied == 0);
    block[0] = 9;
    MUST(palimpsest_arena_refreeze((size_t *)(void *)((char *)&copied + 1)) == -1 && errno == EINVAL);
    MUST(palimpsest_arena_refreeze(&copied) == 0 && copied > 0 && copied <= LENGTH);
    block[0] = 10;
    MUST(palimpsest_arena_refreeze(&copied) == 0 && copied > 0 && copied <= LENGTH);
    MUST(palimpsest_arena_refreeze(&copied) == 0 && copied == 0);
    MUST(palimpsest_arena_refreeze(NULL) == 0);
    MUST(block[0] == 10 && block[1] == 7 && block[LENGTH - 1] == 7);
    MUST(palimpsest_arena_stats(&stats) == 0);
    MUST(freezes > 0 && stats.freezes >= freezes && stats.frozen >= LENGTH && stats.unsealed == 0);
    palimpsest_arena_free(block);
    MUST(palimpsest_arena_aligned_alloc(24, 1) == NULL && errno == EINVAL);

    stats.size = 1;
    MUST(palimpsest_arena_stats(&stats) == -1 && errno == EINVAL);
    return 0;
}
