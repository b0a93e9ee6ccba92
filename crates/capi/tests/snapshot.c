/* Snapshots from C: what is restored, rounds, and mistakes, which are errors. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "must.h"

static struct palimpsest_snapshot shared;
static int counter;

static size_t nested(void *unused) {
    (void)unused;
    return palimpsest_snapshot_restore(shared, NULL);
}

static size_t counts(void *step) {
    counter += *(int *)step;
    return (size_t)counter;
}

static void *foreign(void *unused) {
    (void)unused;
    const struct palimpsest_range range = {0, 0};
    size_t answers = 0;
    answers += palimpsest_snapshot_restore(shared, NULL) == PALIMPSEST_REFUSED;
    answers += strstr(palimpsest_error_message(), "another thread's") != NULL;
    answers += palimpsest_snapshot_declare(shared, range) == PALIMPSEST_REFUSED;
    answers += palimpsest_snapshot_drop(shared) == PALIMPSEST_REFUSED;
    return (void *)answers;
}

static int ranges(void) {
    const size_t len = 1 << 20;
    char *memory = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(memory != MAP_FAILED);
    memset(memory, 1, len);
    const struct palimpsest_range range = {memory, len};
    struct palimpsest_snapshot_options options = {.size = sizeof options, .ranges = &range, .range_count = 1};
    IS(OK, palimpsest_snapshot_take(&options, &shared));

    struct palimpsest_snapshot_extent extent = {.size = sizeof extent};
    IS(OK, palimpsest_snapshot_get_extent(shared, &extent));
    MUST(extent.addresses == len && extent.saved == len && extent.not_taken == 0);
    struct palimpsest_not_taken left = {.size = sizeof left};
    IS(NOT_FOUND, palimpsest_snapshot_not_taken(shared, 0, &left));

    struct palimpsest_restored restored = {.size = sizeof restored};
    for (int round = 0; round < 3; round++) {
        memory[0] = memory[len - 1] = 2;
        IS(OK, palimpsest_snapshot_restore(shared, &restored));
        MUST(memory[0] == 1 && memory[len - 1] == 1 && restored.size == sizeof restored);
        /* The kernel may take fewer pages than there are at a time, never fewer than were written. */
        MUST(restored.pages >= 2);
    }

    /* Mistakes: each is an error, and the snapshot is as good as before. */
    IS(INVALID, palimpsest_snapshot_take(&options, NULL));
    struct palimpsest_snapshot other;
    options.sweep = 9;
    IS(INVALID, palimpsest_snapshot_take(&options, &other));
    SAYS("sweep is 9");
    options.sweep = 3;
    IS(INVALID, palimpsest_snapshot_take(&options, &other));
    options.sweep = 0;
    const struct palimpsest_range odd = {memory + 1, 4096}, beyond = {memory, SIZE_MAX};
    options.ranges = &odd;
    IS(INVALID, palimpsest_snapshot_take(&options, &other));
    SAYS("whole pages");
    options.ranges = &beyond;
    IS(INVALID, palimpsest_snapshot_take(&options, &other));
    options.range_count = SIZE_MAX;
    IS(INVALID, palimpsest_snapshot_take(&options, &other));
    options.range_count = 0;
    IS(INVALID, palimpsest_snapshot_take(&options, &other));
    options.size = 3;
    IS(INVALID, palimpsest_snapshot_take(&options, &other));
    restored.size = 0;
    IS(INVALID, palimpsest_snapshot_restore(shared, &restored));
    IS(INVALID, palimpsest_snapshot_run(shared, 0, NULL, NULL, NULL, NULL, NULL));
    IS(INVALID, palimpsest_snapshot_rounds(NULL, 0, NULL, NULL, NULL));
    IS(INVALID, palimpsest_snapshot_not_taken(shared, 0, NULL));
    IS(INVALID, palimpsest_snapshot_declare(shared, beyond));
    const struct palimpsest_snapshot none = {0}, invented = {shared.handle + 1}, older = {shared.handle ^ 1ull << 40};
    IS(STALE, palimpsest_snapshot_restore(none, NULL));
    IS(STALE, palimpsest_snapshot_restore(invented, NULL));
    IS(STALE, palimpsest_snapshot_restore(older, NULL));

    /* From its own target. */
    size_t value;
    int is_abandoned = 7;
    IS(OK, palimpsest_snapshot_run(shared, 0, nested, NULL, &value, &is_abandoned, NULL));
    MUST(value == PALIMPSEST_BUSY && is_abandoned == 0);

    pthread_t thread;
    MUST(pthread_create(&thread, NULL, foreign, NULL) == 0);
    void *answers;
    MUST(pthread_join(thread, &answers) == 0 && answers == (void *)4);

    memory[5] = 9;
    IS(OK, palimpsest_snapshot_restore(shared, NULL));
    MUST(memory[5] == 1);
    IS(OK, palimpsest_snapshot_drop(shared));
    IS(STALE, palimpsest_snapshot_drop(shared));
    memory[5] = 9;
    MUST(memory[5] == 9 && munmap(memory, len) == 0);
    return 0;
}

/* The heap, static variables and mappings, and a handle that is not restored with them. */
static int whole(void) {
    char *block = malloc(100000);
    MUST(block != NULL);
    strcpy(block, "before");
    counter = 5;
    /* An earlier message, in the heap and in thread-local memory. */
    const struct palimpsest_snapshot none = {0};
    IS(STALE, palimpsest_snapshot_drop(none));
    struct palimpsest_snapshot snapshot, second;
    struct palimpsest_snapshot_options options = {.size = sizeof options, .restore_descriptors = 1};
    IS(OK, palimpsest_snapshot_take(&options, &snapshot));
    IS(REFUSED, palimpsest_snapshot_take(NULL, &second));
    for (int round = 0; round < 100; round++) {
        strcpy(block, "after");
        counter = round;
        char *made = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        MUST(made != MAP_FAILED && malloc(1000) != NULL && dup(1) >= 0);
        IS(STALE, palimpsest_snapshot_drop(none));
        struct palimpsest_restored restored = {.size = sizeof restored};
        IS(OK, palimpsest_snapshot_restore(snapshot, &restored));
        MUST(strcmp(block, "before") == 0 && counter == 5 && restored.closed == 1 && restored.unmapped >= 1 << 20);
    }
    size_t value;
    int step = 3;
    for (int round = 0; round < 3; round++) {
        IS(OK, palimpsest_snapshot_run(snapshot, 1, counts, &step, &value, NULL, NULL));
        MUST(value == 8 && counter == 5);
    }
    /* A child has a copy, which it may restore. */
    const pid_t child = fork();
    if (child == 0) {
        counter = 1;
        const enum palimpsest_result answer = palimpsest_snapshot_restore(snapshot, NULL);
        _exit(answer == PALIMPSEST_OK && counter == 5 ? 0 : 1);
    }
    int status;
    MUST(waitpid(child, &status, 0) == child && status == 0);
    IS(OK, palimpsest_snapshot_drop(snapshot));
    IS(STALE, palimpsest_snapshot_restore(snapshot, NULL));
    free(block);
    return 0;
}

/* A handle in memory that is restored, as a static variable is. */
static int in_itself(void) {
    shared.handle = 77;
    const struct palimpsest_range odd = {(void *)1, 1};
    struct palimpsest_snapshot_options options = {.size = sizeof options, .ranges = &odd, .range_count = 1};
    IS(INVALID, palimpsest_snapshot_take(&options, &shared));
    MUST(shared.handle == 77);
    IS(OK, palimpsest_snapshot_take(NULL, &shared));
    for (int round = 0; round < 3; round++) {
        IS(OK, palimpsest_snapshot_restore(shared, NULL));
    }
    IS(OK, palimpsest_snapshot_drop(shared));
    return 0;
}

static void on_signal(int number) { palimpsest_abandon((size_t)number); }

struct seen {
    uint64_t rounds;
    size_t pages;
};

/* `seen` is in memory that is left alone. */
static size_t body(void *argument, uint64_t number, size_t value, const struct palimpsest_restored *restored) {
    struct seen *seen = argument;
    if (counter != 7 || (number == 0) != (restored == NULL) || (number > 0 && value != SIGUSR1)) {
        return 0;
    }
    counter = 8;
    seen->rounds = number + 1;
    if (restored != NULL) {
        seen->pages += restored->pages;
    }
    if (number < 4) {
        raise(SIGUSR1);
    }
    return 42;
}

static int stack(void) {
    struct sigaction action = {.sa_handler = on_signal};
    MUST(sigaction(SIGUSR1, &action, NULL) == 0);
    counter = 7;
    struct seen *seen = mmap(NULL, sizeof *seen, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(seen != MAP_FAILED);
    const struct palimpsest_range kept = {seen, sizeof *seen};
    struct palimpsest_snapshot_options options = {.size = sizeof options, .except = &kept, .except_count = 1};
    size_t value = 0;
    IS(OK, palimpsest_snapshot_rounds(&options, 0, body, seen, &value));
    MUST(value == 42 && seen->rounds == 5 && seen->pages > 0 && counter == 8);
    sigset_t blocked;
    MUST(sigprocmask(SIG_SETMASK, NULL, &blocked) == 0 && sigismember(&blocked, SIGUSR1) == 0);
    return 0;
}

int main(void) { return ranges() || whole() || in_itself() || stack(); }
