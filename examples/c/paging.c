/* The example of palimpsest_paging.h, with the one function that the library for kernels asks for. */
#include "../../crates/paging-capi/examples/fork.c"

void palimpsest_paging_panic(const char *message, size_t len) {
    fwrite(message, 1, len, stderr);
    abort();
}
