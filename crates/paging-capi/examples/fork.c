// Forks an address space. Parent and child share tables and pages, until a store of the child copies a page.
//
// Physical memory is an array here, and its first frame stays unused, since physical address 0 means none. In a kernel
// it is the direct map, and the counts of references are atomic.

#include <palimpsest_paging.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PAGE = 4096, FRAMES = 64 };

static _Alignas(PAGE) char memory[FRAMES][PAGE];
static unsigned references[FRAMES];
static struct palimpsest_paging_meta metas[FRAMES];

// What the library asks of a kernel.

static uint64_t allocate(void *context) {
    for (uint64_t frame = 1; frame < FRAMES; frame++) {
        if (references[frame] == 0) {
            references[frame] = 1;
            return frame * PAGE;
        }
    }
    return 0;
}

static void free_table(void *context, uint64_t table) { references[table / PAGE] = 0; }

static struct palimpsest_paging_meta *meta(void *context, uint64_t table) { return &metas[table / PAGE]; }

static void flush(void *context, const struct palimpsest_paging_flush *request) {
    // A kernel calls every CPU that runs the space request->space, and waits for it. No CPU runs this one.
}

static void retain(void *context, uint64_t page, uint64_t len) { references[page / PAGE]++; }

static void release(void *context, uint64_t page, uint64_t len) { references[page / PAGE]--; }

static int is_exclusive(void *context, uint64_t page, uint64_t len) { return references[page / PAGE] == 1; }

static uint64_t copy(void *context, uint64_t page, uint64_t len) {
    uint64_t made = allocate(context);
    if (made != 0) memcpy(memory[made / PAGE], memory[page / PAGE], PAGE);
    return made;
}

static void must(enum palimpsest_paging_result result) {
    if (result != PALIMPSEST_PAGING_OK) {
        puts(palimpsest_paging_message(result));
        exit(1);
    }
}

// Returns the bytes that a space maps at an address.
static char *at(const struct palimpsest_paging_space *space, uint64_t address) {
    struct palimpsest_paging_mapping mapping = {.size = sizeof mapping};
    must(palimpsest_paging_query(space, address, &mapping));
    return memory[mapping.physical / PAGE];
}

int main(void) {
    struct palimpsest_paging_machine machine = {
        .size = sizeof machine, .physical_offset = (uint64_t)(uintptr_t)memory, .allocate_table = allocate,
        .free_table = free_table, .meta = meta, .flush = flush, .page_retain = retain, .page_release = release,
        .page_is_exclusive = is_exclusive, .page_copy = copy,
    };
    // Zero, as memory for spaces must be.
    static struct palimpsest_paging_space parent, child;
    const uint32_t rights = PALIMPSEST_PAGING_READ | PALIMPSEST_PAGING_WRITE;
    const uint64_t address = 0x400000;

    must(palimpsest_paging_space_new(&parent, &machine, PALIMPSEST_PAGING_X86_64, 1, PALIMPSEST_PAGING_SHARE_LAST));
    // From here on the space owns our reference to the page.
    must(palimpsest_paging_map(&parent, address, allocate(NULL), PAGE, rights, PALIMPSEST_PAGING_4K));
    strcpy(at(&parent, address), "before");
    must(palimpsest_paging_fork(&parent, &child, 2));

    // The child stores. Its CPU faults, and the kernel's handler of page faults makes this call.
    must(palimpsest_paging_fault(&child, address, PALIMPSEST_PAGING_WRITE, NULL));
    strcpy(at(&child, address), "after");
    printf("parent: %s, child: %s\n", at(&parent, address), at(&child, address));

    must(palimpsest_paging_space_drop(&child));
    must(palimpsest_paging_space_drop(&parent));
    // All tables and pages were given back.
    for (int frame = 0; frame < FRAMES; frame++) {
        if (references[frame] != 0) return 1;
    }
    return 0;
}
