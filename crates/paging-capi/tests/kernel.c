// A kernel that refers to every function of the library, and has the one that the library asks for. The step `no-std`
// links it, without a C library; it never runs.

#include <palimpsest_paging.h>

void palimpsest_paging_panic(const char *message, size_t len);
void _start(void);

void palimpsest_paging_panic(const char *message, size_t len) {
    (void)message, (void)len;
    for (;;) {
    }
}

void _start(void) {
    static struct palimpsest_paging_space space, child;
    static struct palimpsest_paging_machine machine;
    static struct palimpsest_paging_mapping mapping;
    static struct palimpsest_paging_resolution resolution;
    static struct palimpsest_paging_stats stats;
    uint64_t root;
    palimpsest_paging_space_new(&space, &machine, PALIMPSEST_PAGING_X86_64, 1, PALIMPSEST_PAGING_SHARE_LAST);
    palimpsest_paging_map(&space, 4096, 4096, 4096, PALIMPSEST_PAGING_READ, PALIMPSEST_PAGING_4K);
    palimpsest_paging_protect(&space, 4096, 4096, PALIMPSEST_PAGING_READ, PALIMPSEST_PAGING_USERS_ONLY);
    palimpsest_paging_fork(&space, &child, 2);
    palimpsest_paging_fault(&space, 4096, PALIMPSEST_PAGING_READ, &resolution);
    palimpsest_paging_query(&space, 4096, &mapping);
    palimpsest_paging_unmap(&space, 4096, 4096, PALIMPSEST_PAGING_USERS_ONLY);
    palimpsest_paging_root(&space, &root);
    palimpsest_paging_space_stats(&space, &stats);
    palimpsest_paging_message(palimpsest_paging_version());
    palimpsest_paging_space_drop(&space);
    for (;;) {
    }
}
