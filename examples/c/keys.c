/* A branch that costs one instruction, switched while the program runs. */
#include <palimpsest.h>
#include <stdio.h>

// ANCHOR: keys
PALIMPSEST_KEY(net_trace, "net.trace", 0);

static size_t sent(const char *packet, size_t len) {
    if (palimpsest_branch_unlikely(net_trace)) {
        printf("sending %s\n", packet);
    }
    return len;
}

int main(void) {
    sent("quietly", 7);
    if (palimpsest_key_set(&net_trace, 1) != PALIMPSEST_OK) {
        fprintf(stderr, "%s\n", palimpsest_error_message());
        return 1;
    }
    sent("and said", 8);
    return 0;
}
// ANCHOR_END: keys
