/* Rounds that all start from the same state of one piece of memory: other memory is left alone. */
#define _DEFAULT_SOURCE
#include <palimpsest.h>
#include <stdio.h>
#include <sys/mman.h>

/* The state of an interpreter, in pages of its own. */
struct machine {
    size_t registers[16];
    unsigned char memory[1 << 20];
};

static void check(enum palimpsest_result result) {
    if (result != PALIMPSEST_OK) {
        fprintf(stderr, "%s\n", palimpsest_error_message());
        fflush(stderr);
        _Exit(1);
    }
}

/* Fills memory with what it is given, and counts. */
static size_t runs(struct machine *machine, unsigned char with) {
    for (size_t at = 0; at < sizeof machine->memory; at += 4096) {
        machine->registers[0] += machine->memory[at];
        machine->memory[at] = with;
    }
    return machine->registers[0];
}

int main(void) {
    const size_t page = 4096, len = (sizeof(struct machine) + page - 1) / page * page;
    struct machine *machine =
        (struct machine *)mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if ((void *)machine == MAP_FAILED) {
        return 1;
    }
    runs(machine, 1);
    // ANCHOR: ranges
    const struct palimpsest_range range = {machine, len};
    struct palimpsest_snapshot_options options = {.size = sizeof options, .ranges = &range, .range_count = 1};
    struct palimpsest_snapshot snapshot;
    check(palimpsest_snapshot_take(&options, &snapshot));
    size_t first = 0, rounds = 0;
    for (; rounds < 100; rounds++) {
        size_t found = runs(machine, (unsigned char)rounds);
        first = rounds == 0 ? found : first;
        if (found != first) {
            break; /* a round has seen what another has left */
        }
        check(palimpsest_snapshot_restore(snapshot, NULL));
    }
    check(palimpsest_snapshot_drop(snapshot));
    // ANCHOR_END: ranges
    printf("%zu rounds, each with %zu\n", rounds, first);
    return rounds == 100 && first == 256 ? 0 : 1;
}
