/* A loop in which each round starts from the same state of the whole process. */
#include <palimpsest.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ANCHOR: snapshot
/* State of the target: every input finds it unchanged. */
static int seen;
static char *last;

static size_t target(void *argument) {
    const char *input = (const char *)argument;
    if (seen++ != 0 || last != NULL) {
        return 1000;
    }
    last = strdup(input);
    if (strcmp(input, "crash") == 0) {
        palimpsest_abandon(11); /* a handler of SIGSEGV may do the same */
    }
    return strlen(input);
}

static int rounds(void) {
    const char *inputs[] = {"a", "crash", "ccc"}; /* in this frame, which is not put back */
    struct palimpsest_snapshot snapshot;
    if (palimpsest_snapshot_take(NULL, &snapshot) != PALIMPSEST_OK) {
        fprintf(stderr, "%s\n", palimpsest_error_message());
        return 1;
    }
    size_t total = 0, crashes = 0;
    for (int round = 0; round < 3; round++) {
        size_t value;
        int is_abandoned;
        if (palimpsest_snapshot_run(snapshot, 0, target, (void *)inputs[round], &value, &is_abandoned, NULL)) {
            return 1;
        }
        *(is_abandoned ? &crashes : &total) += is_abandoned ? 1 : value;
    }
    palimpsest_snapshot_drop(snapshot);
    return total == 4 && crashes == 1 && seen == 0 ? 0 : 1;
}
// ANCHOR_END: snapshot

int main(void) {
    if (rounds() != 0) {
        fprintf(stderr, "%s\n", palimpsest_error_message());
        return 1;
    }
    printf("three inputs, each from the same state\n");
    return 0;
}
