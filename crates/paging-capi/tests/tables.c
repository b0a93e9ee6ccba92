// A kernel in C on an arena that stands for physical memory. It reads the tables of every format by itself, as CPUs do
// (`walk.h`), and compares them with a plain list of what it has asked for.

#include <palimpsest_paging.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "walk.h"

#define CHECK(what) \
    do { \
        if (!(what)) { \
            printf("%s:%d: %s\n", __FILE__, __LINE__, #what); \
            exit(1); \
        } \
    } while (0)
#define IS(call, result) CHECK((call) == PALIMPSEST_PAGING_##result)

#define PAGE 4096ull
#define FRAMES 4096ull
// Physical memory starts here, and not at 0, where the arena's own address would hide a missing offset.
#define BASE 0x140000000ull
// Device memory, which nobody counts.
#define DEVICE 0x10000000000ull
#define RW (PALIMPSEST_PAGING_READ | PALIMPSEST_PAGING_WRITE)
#define RX (PALIMPSEST_PAGING_READ | PALIMPSEST_PAGING_EXECUTE)
#define USERS PALIMPSEST_PAGING_USERS_ONLY

struct kernel {
    // What the CPU takes the tables for.
    uint32_t format;
    char *memory;
    struct palimpsest_paging_meta *metas;
    unsigned uses[FRAMES];
    // Frames that may still be handed out.
    uint64_t left;
    uint64_t flushes;
    uint64_t entries_made;
};

static int is_counted(uint64_t at) { return at >= BASE && at < BASE + FRAMES * PAGE; }
static uint64_t index_of(uint64_t frame) {
    CHECK(is_counted(frame) && frame % PAGE == 0);
    return (frame - BASE) / PAGE;
}
static void *at(struct kernel *k, uint64_t frame) { return k->memory + index_of(frame) * PAGE; }

static uint64_t take(void *context) {
    struct kernel *k = context;
    if (k->left == 0) return 0;
    for (uint64_t index = 0; index < FRAMES; index++) {
        if (k->uses[index] == 0) {
            k->uses[index] = 1;
            k->left--;
            // Not zero, as the header allows.
            memset(k->memory + index * PAGE, 0xa5, PAGE);
            return BASE + index * PAGE;
        }
    }
    return 0;
}
static void drop_use(struct kernel *k, uint64_t frame) {
    CHECK(k->uses[index_of(frame)] > 0);
    if (--k->uses[index_of(frame)] == 0) k->left++;
}
static void free_table(void *context, uint64_t table) {
    struct kernel *k = context;
    CHECK(k->uses[index_of(table)] == 1);
    // Whoever still reads it finds nonsense.
    memset(at(k, table), 0x5a, PAGE);
    drop_use(k, table);
}
static struct palimpsest_paging_meta *meta(void *context, uint64_t table) {
    return ((struct kernel *)context)->metas + index_of(table);
}
static struct palimpsest_paging_meta *no_meta(void *context, uint64_t table) {
    (void)context, (void)table;
    return NULL;
}
static uint64_t odd_frame(void *context) { return take(context) + 8; }
static uint64_t free_tables(void *context) { return ((struct kernel *)context)->left; }
static void flush(void *context, const struct palimpsest_paging_flush *request) {
    CHECK((request->count == 0) == (request->ranges == NULL));
    for (size_t i = 0; i < request->count; i++) {
        CHECK(request->ranges[i].start < request->ranges[i].end && request->ranges[i].start % PAGE == 0);
    }
    ((struct kernel *)context)->flushes++;
}
static void entries_made(void *context) { ((struct kernel *)context)->entries_made++; }
static void retain(void *context, uint64_t page, uint64_t len) {
    for (uint64_t end = page + len; is_counted(page) && page < end; page += PAGE) {
        ((struct kernel *)context)->uses[index_of(page)]++;
    }
}
static void release(void *context, uint64_t page, uint64_t len) {
    for (uint64_t end = page + len; is_counted(page) && page < end; page += PAGE) drop_use(context, page);
}
static int is_exclusive(void *context, uint64_t page, uint64_t len) {
    CHECK(len == PAGE || !is_counted(page));
    return is_counted(page) && ((struct kernel *)context)->uses[index_of(page)] == 1;
}
static uint64_t copy(void *context, uint64_t page, uint64_t len) {
    uint64_t made = len == PAGE ? take(context) : 0;
    if (made && is_counted(page)) memcpy(at(context, made), at(context, page), PAGE);
    return made;
}

static struct palimpsest_paging_machine machine_of(struct kernel *k) {
    struct palimpsest_paging_machine machine = {
        .size = sizeof machine, .context = k, .physical_offset = (uint64_t)(uintptr_t)k->memory - BASE,
        .allocate_table = take, .free_table = free_table, .meta = meta, .free_tables = free_tables, .flush = flush,
        .entries_made = entries_made, .page_retain = retain, .page_release = release,
        .page_is_exclusive = is_exclusive, .page_copy = copy,
    };
    return machine;
}

static uint64_t entry_at(void *context, uint64_t table, unsigned index) {
    return ((uint64_t *)at(context, table))[index];
}

// What a CPU finds at an address: the physical address, and whether a store passes. Returns 0 for a fault.
static int walk(struct kernel *k, uint64_t root, uint64_t address, uint64_t *physical, int *stores) {
    struct translation there = walk_format(k->format, entry_at, k, root, address);
    *physical = there.physical, *stores = (there.rights & MAY_WRITE) != 0;
    return there.len != 0;
}

static uint64_t root_of(struct palimpsest_paging_space *space) {
    uint64_t root = 0;
    IS(palimpsest_paging_root(space, &root), OK);
    return root;
}

// A store of user mode: what faults is resolved, and then made again.
static enum palimpsest_paging_result store(struct kernel *k, struct palimpsest_paging_space *space, uint64_t address,
                                           uint64_t value) {
    uint64_t physical = 0;
    int stores = 0;
    for (int tries = 0; tries < 2; tries++) {
        if (walk(k, root_of(space), address, &physical, &stores) && stores) {
            memcpy((char *)at(k, physical & ~(PAGE - 1)) + physical % PAGE, &value, sizeof value);
            return PALIMPSEST_PAGING_OK;
        }
        enum palimpsest_paging_result done = palimpsest_paging_fault(space, address, PALIMPSEST_PAGING_WRITE, NULL);
        if (done != PALIMPSEST_PAGING_OK) return done;
    }
    CHECK(!"a fault that was resolved comes again");
    return PALIMPSEST_PAGING_INVALID;
}

static uint64_t load(struct kernel *k, struct palimpsest_paging_space *space, uint64_t address) {
    uint64_t physical = 0, value = 0;
    int stores = 0;
    CHECK(walk(k, root_of(space), address, &physical, &stores));
    memcpy(&value, (char *)at(k, physical & ~(PAGE - 1)) + physical % PAGE, sizeof value);
    return value;
}

static uint64_t used(struct kernel *k) { return FRAMES - k->left; }

// 1 GiB, in 512 tables of pages: a fork allocates three, and its first store copies one.
static void forks_in_constant_time(struct kernel *k, struct palimpsest_paging_machine *machine) {
    static struct palimpsest_paging_space parent, child;
    uint64_t start = 1ull << 30, len = 1ull << 30;
    IS(palimpsest_paging_space_new(&parent, machine, PALIMPSEST_PAGING_X86_64, 1, PALIMPSEST_PAGING_SHARE_LAST), OK);
    IS(palimpsest_paging_map(&parent, start, DEVICE, len, RW, PALIMPSEST_PAGING_4K), OK);
    CHECK(used(k) == 1 + 1 + 1 + 512);
    struct palimpsest_paging_stats stats = {.size = sizeof stats};
    IS(palimpsest_paging_space_stats(&parent, &stats), OK);
    CHECK(stats.tables == 515 && stats.pages == 1 << 18 && stats.flushes == 0);
    uint64_t before = used(k), flushes = k->flushes;
    IS(palimpsest_paging_fork(&parent, &child, 2), OK);
    CHECK(used(k) - before == 3 && k->flushes == flushes + 1);
    struct palimpsest_paging_resolution how = {.size = sizeof how};
    IS(palimpsest_paging_fault(&child, start, PALIMPSEST_PAGING_WRITE, &how), OK);
    CHECK(how.tables_copied == 1 && how.page_copied == 1 && how.page_reused == 0);
    // The table, and the page.
    CHECK(used(k) - before == 5);
    uint64_t physical = 0;
    int stores = 0;
    CHECK(walk(k, root_of(&parent), start, &physical, &stores) && physical == DEVICE && !stores);
    CHECK(walk(k, root_of(&child), start, &physical, &stores) && is_counted(physical) && stores);
    IS(palimpsest_paging_space_drop(&child), OK);
    IS(palimpsest_paging_space_drop(&parent), OK);
    CHECK(used(k) == 0);
}

#define SPACES 3
#define PLACES 24
// A place in three regions, so that several tables of each level are used.
static uint64_t place(const struct kernel *k, unsigned index) {
    // The upper half of AArch64; and what one entry of the root reaches.
    uint64_t first = k->format == PALIMPSEST_PAGING_AARCH64_UPPER ? 0xffff000000000000ull : 0;
    uint64_t region = reach_of(levels_of(k->format));
    return first + (index % 3) * region + (index % 2 + 1) * (2ull << 20) + index * PAGE;
}

struct model {
    int lives, is_mapped[PLACES];
    // As `PALIMPSEST_PAGING_READ` and so on.
    uint32_t rights[PLACES];
    uint64_t value[PLACES];
};

static void compare(struct kernel *k, struct palimpsest_paging_space *space, const struct model *model) {
    for (unsigned index = 0; index < PLACES; index++) {
        struct translation there = walk_format(k->format, entry_at, k, root_of(space), place(k, index));
        // The CPU's rights are those of the header; the one to write is missing while a fork shares the page.
        uint32_t may = (there.rights & MAY_READ ? PALIMPSEST_PAGING_READ : 0) |
                       (there.rights & MAY_EXECUTE ? PALIMPSEST_PAGING_EXECUTE : 0);
        int is_there = there.len != 0;
        CHECK(is_there == model->is_mapped[index]);
        struct palimpsest_paging_mapping found = {.size = sizeof found};
        if (!is_there) {
            IS(palimpsest_paging_query(space, place(k, index), &found), NOT_MAPPED);
            continue;
        }
        IS(palimpsest_paging_query(space, place(k, index) + 123, &found), OK);
        CHECK(found.start == place(k, index) && found.len == PAGE && found.physical == there.physical);
        CHECK(there.len == PAGE);
        CHECK(found.attributes == model->rights[index]);
        CHECK(may == (model->rights[index] & RX));
        CHECK(!(there.rights & MAY_WRITE) || model->rights[index] & PALIMPSEST_PAGING_WRITE);
        CHECK(load(k, space, place(k, index)) == model->value[index]);
    }
}

// Operations by a fixed sequence of numbers on forked spaces; what each sees is the model's.
static void does_what_a_plain_list_does(struct kernel *k, struct palimpsest_paging_machine *machine, uint32_t share) {
    static struct palimpsest_paging_space spaces[SPACES];
    static struct model models[SPACES];
    uint64_t random = 88172645463325252ull + share + 16 * k->format;
    memset(models, 0, sizeof models);
    IS(palimpsest_paging_space_new(&spaces[0], machine, k->format, 10, share), OK);
    models[0].lives = 1;
    for (unsigned round = 0; round < 300; round++) {
        random ^= random << 13, random ^= random >> 7, random ^= random << 17;
        unsigned which = random % SPACES, index = random / 8 % PLACES, other = (which + 1) % SPACES;
        struct palimpsest_paging_space *space = &spaces[which];
        struct model *model = &models[which];
        if (!model->lives) {
            IS(palimpsest_paging_unmap(space, place(k, index), PAGE, USERS), STALE);
            continue;
        }
        switch (random / 1024 % 8) {
        case 0: case 1:
            if (model->is_mapped[index]) {
                IS(palimpsest_paging_map(space, place(k, index), DEVICE, PAGE, RW, PALIMPSEST_PAGING_4K), MAPPED);
            } else {
                uint64_t frame = take(k);
                memcpy(at(k, frame), &random, sizeof random);
                IS(palimpsest_paging_map(space, place(k, index), frame, PAGE, RW, PALIMPSEST_PAGING_4K), OK);
                model->is_mapped[index] = 1, model->rights[index] = RW;
                model->value[index] = random;
            }
            break;
        case 2:
            IS(palimpsest_paging_unmap(space, place(k, index), PAGE, USERS), OK);
            model->is_mapped[index] = 0;
            break;
        case 3: {
            static const uint32_t choices[] = {PALIMPSEST_PAGING_READ, RW, RX, RW | RX};
            uint32_t rights = choices[random >> 20 & 3];
            IS(palimpsest_paging_protect(space, place(k, index), PAGE, rights, USERS), OK);
            model->rights[index] = rights;
            break;
        }
        case 4:
            if (models[other].lives) {
                IS(palimpsest_paging_fork(space, &spaces[other], 50 + round), IN_USE);
                IS(palimpsest_paging_space_drop(&spaces[other]), OK);
            }
            IS(palimpsest_paging_fork(space, &spaces[other], 50 + round), OK);
            models[other] = *model;
            break;
        default: {
            enum palimpsest_paging_result done = store(k, space, place(k, index), random);
            int is_writable = (model->rights[index] & PALIMPSEST_PAGING_WRITE) != 0;
            CHECK(done == (!model->is_mapped[index] ? PALIMPSEST_PAGING_NOT_MAPPED
                           : is_writable            ? PALIMPSEST_PAGING_OK
                                                    : PALIMPSEST_PAGING_DENIED));
            if (done == PALIMPSEST_PAGING_OK) model->value[index] = random;
        }
        }
        for (unsigned all = 0; all < SPACES; all++) {
            if (models[all].lives) compare(k, &spaces[all], &models[all]);
        }
    }
    for (unsigned all = 0; all < SPACES; all++) {
        if (models[all].lives) IS(palimpsest_paging_space_drop(&spaces[all]), OK);
    }
    // Every table and every page was given back.
    CHECK(used(k) == 0);
}

// Pages of 1 GiB and 2 MiB are where the CPU expects them, and become smaller ones when a part of them changes.
static void large_pages_are_split(struct kernel *k, struct palimpsest_paging_machine *machine) {
    static struct palimpsest_paging_space space;
    uint64_t giga = 1ull << 30, mega = 2ull << 20;
    uint64_t start = (k->format == PALIMPSEST_PAGING_AARCH64_UPPER ? 0xffff000000000000ull : 0) + giga;
    IS(palimpsest_paging_space_new(&space, machine, k->format, 1, PALIMPSEST_PAGING_SHARE_LAST), OK);
    uint32_t attributes = RW | PALIMPSEST_PAGING_SHARED;
    IS(palimpsest_paging_map(&space, start, DEVICE, giga, attributes, PALIMPSEST_PAGING_ONLY_1G), OK);
    uint64_t root = root_of(&space), inside = start + 5 * mega + 3 * PAGE + 77;
    struct translation there = walk_format(k->format, entry_at, k, root, inside);
    CHECK(there.len == giga && there.physical == DEVICE + (inside - start) && there.rights == (MAY_READ | MAY_WRITE));
    // One page in it may no longer be written, and another one is gone.
    IS(palimpsest_paging_protect(&space, inside - 77, PAGE, RX, USERS), OK);
    IS(palimpsest_paging_unmap(&space, inside - 77 + PAGE, PAGE, USERS), OK);
    there = walk_format(k->format, entry_at, k, root, inside);
    CHECK(there.len == PAGE && there.physical == DEVICE + (inside - start) && there.rights == (MAY_READ | MAY_EXECUTE));
    CHECK(walk_format(k->format, entry_at, k, root, inside + PAGE).len == 0);
    // Its neighbours are as they were, in pages as large as they can be.
    there = walk_format(k->format, entry_at, k, root, inside - PAGE);
    CHECK(there.len == PAGE && there.rights == (MAY_READ | MAY_WRITE));
    there = walk_format(k->format, entry_at, k, root, inside + mega);
    CHECK(there.len == mega && there.physical == DEVICE + (inside + mega - start));
    CHECK(there.rights == (MAY_READ | MAY_WRITE));
    IS(palimpsest_paging_space_drop(&space), OK);
    CHECK(used(k) == 0);
}

static void refuses_mistakes(struct kernel *k, struct palimpsest_paging_machine *machine) {
    static struct palimpsest_paging_space space, moved;
    struct palimpsest_paging_space *odd = (struct palimpsest_paging_space *)((char *)&moved + 4);
    uint32_t format = PALIMPSEST_PAGING_X86_64, small = PALIMPSEST_PAGING_4K;
    uint64_t root;
    IS(palimpsest_paging_space_new(NULL, machine, format, 1, 1), INVALID);
    IS(palimpsest_paging_space_new(odd, machine, format, 1, 1), INVALID);
    IS(palimpsest_paging_space_new(&space, NULL, format, 1, 1), INVALID);
    IS(palimpsest_paging_space_new(&space, machine, 6, 1, 1), INVALID);
    IS(palimpsest_paging_space_new(&space, machine, format, UINT64_MAX, 1), INVALID);
    IS(palimpsest_paging_space_new(&space, machine, format, 1, 4), INVALID);
    IS(palimpsest_paging_space_new(&space, machine, format, 1, UINT32_MAX), INVALID);
    struct palimpsest_paging_machine wrong = *machine;
    wrong.size = 8;
    IS(palimpsest_paging_space_new(&space, &wrong, format, 1, 1), INVALID);
    wrong = *machine, wrong.flush = NULL;
    IS(palimpsest_paging_space_new(&space, &wrong, format, 1, 1), INVALID);
    wrong = *machine, wrong.page_copy = NULL;
    IS(palimpsest_paging_space_new(&space, &wrong, format, 1, 1), INVALID);
    wrong = *machine, wrong.physical_offset += 8;
    IS(palimpsest_paging_space_new(&space, &wrong, format, 1, 1), INVALID);
    wrong = *machine, wrong.entries_made = NULL;
    IS(palimpsest_paging_space_new(&space, &wrong, PALIMPSEST_PAGING_AARCH64, 1, 1), INVALID);
    // Fields of a later header: zero, or unknown.
    struct { struct palimpsest_paging_machine known; uint64_t later; } longer = {*machine, 1};
    longer.known.size = sizeof longer;
    IS(palimpsest_paging_space_new(&space, &longer.known, format, 1, 1), INVALID);
    longer.later = 0;
    IS(palimpsest_paging_space_new(&space, &longer.known, format, 1, 1), OK);
    IS(palimpsest_paging_space_new(&space, machine, format, 1, 1), IN_USE);
    memcpy(&moved, &space, sizeof moved);
    IS(palimpsest_paging_root(&moved, &root), STALE);
    IS(palimpsest_paging_space_drop(&moved), STALE);
    memset(&moved, 0, sizeof moved);
    IS(palimpsest_paging_root(&space, NULL), INVALID);
    IS(palimpsest_paging_root(NULL, &root), INVALID);
    IS(palimpsest_paging_fork(&space, &moved, 1), INVALID);
    IS(palimpsest_paging_fork(&space, &space, 2), IN_USE);
    IS(palimpsest_paging_fork(&space, NULL, 2), INVALID);

    IS(palimpsest_paging_map(&space, PAGE, DEVICE, 0, RW, small), RANGE);
    IS(palimpsest_paging_map(&space, PAGE + 1, DEVICE, PAGE, RW, small), RANGE);
    IS(palimpsest_paging_map(&space, 1ull << 47, DEVICE, PAGE, RW, small), RANGE);
    IS(palimpsest_paging_map(&space, (1ull << 47) - PAGE, DEVICE, 2 * PAGE, RW, small), RANGE);
    IS(palimpsest_paging_map(&space, -PAGE, DEVICE, PAGE, RW, small), RANGE);
    IS(palimpsest_paging_map(&space, PAGE, DEVICE, UINT64_MAX - 4095, RW, small), RANGE);
    IS(palimpsest_paging_map(&space, PAGE, DEVICE + 1, PAGE, RW, small), PHYSICAL);
    IS(palimpsest_paging_map(&space, PAGE, 1ull << 52, PAGE, RW, small), PHYSICAL);
    IS(palimpsest_paging_map(&space, PAGE, -PAGE, PAGE, RW, small), PHYSICAL);
    IS(palimpsest_paging_map(&space, PAGE, DEVICE, PAGE, PALIMPSEST_PAGING_WRITE, small), ATTRIBUTES);
    IS(palimpsest_paging_map(&space, PAGE, DEVICE, PAGE, RW | PALIMPSEST_PAGING_GLOBAL, small), ATTRIBUTES);
    IS(palimpsest_paging_map(&space, PAGE, DEVICE, PAGE, RW | 200 * PALIMPSEST_PAGING_MEMORY_TYPE, small), ATTRIBUTES);
    IS(palimpsest_paging_map(&space, PAGE, DEVICE, PAGE, RW | 64, small), INVALID);
    IS(palimpsest_paging_map(&space, PAGE, DEVICE, PAGE, UINT32_MAX, small), INVALID);
    IS(palimpsest_paging_map(&space, PAGE, DEVICE, PAGE, RW, 5), INVALID);
    IS(palimpsest_paging_map(&space, PAGE, DEVICE, PAGE, RW, PALIMPSEST_PAGING_ONLY_2M), ALIGNMENT);
    IS(palimpsest_paging_protect(&space, PAGE, PAGE, 8, USERS), INVALID);
    IS(palimpsest_paging_protect(&space, PAGE, PAGE, PALIMPSEST_PAGING_EXECUTE, USERS), ATTRIBUTES);
    IS(palimpsest_paging_unmap(&space, PAGE, PAGE, 2), INVALID);
    IS(palimpsest_paging_unmap(&space, PAGE, UINT64_MAX, USERS), RANGE);
    IS(palimpsest_paging_fault(&space, PAGE, 3, NULL), INVALID);
    IS(palimpsest_paging_fault(&space, 1ull << 63, PALIMPSEST_PAGING_READ, NULL), NOT_MAPPED);
    struct palimpsest_paging_mapping mapping = {.size = 8};
    IS(palimpsest_paging_query(&space, PAGE, &mapping), INVALID);
    IS(palimpsest_paging_query(&space, PAGE, NULL), INVALID);

    // The kernel's pages are not user mode's, and change only when that is asked for. A large page is split.
    uint32_t kernels = RW | PALIMPSEST_PAGING_KERNEL | PALIMPSEST_PAGING_GLOBAL | PALIMPSEST_PAGING_SHARED;
    uint64_t high = 0xffffffff80000000ull;
    IS(palimpsest_paging_map(&space, high, DEVICE, 2 << 20, kernels, PALIMPSEST_PAGING_ONLY_2M), OK);
    IS(palimpsest_paging_fault(&space, high, PALIMPSEST_PAGING_READ, NULL), DENIED);
    IS(palimpsest_paging_fault(&space, high, PALIMPSEST_PAGING_READ | PALIMPSEST_PAGING_KERNEL, NULL), OK);
    IS(palimpsest_paging_unmap(&space, high, PAGE, USERS), KERNELS);
    // CPUs of x86-64 set marks by themselves; elsewhere the kernel would fault without them.
    uint32_t accessed = PALIMPSEST_PAGING_ACCESSED;
    IS(palimpsest_paging_take_marks(&space, high, PAGE, accessed, NULL, NULL), OK);
    static struct palimpsest_paging_space arm;
    uint32_t aarch64 = PALIMPSEST_PAGING_AARCH64;
    IS(palimpsest_paging_space_new(&arm, machine, aarch64, 3, PALIMPSEST_PAGING_SHARE_LAST), OK);
    IS(palimpsest_paging_map(&arm, PAGE, DEVICE, PAGE, kernels, small), OK);
    IS(palimpsest_paging_take_marks(&arm, PAGE, PAGE, accessed, NULL, NULL), KERNELS);
    IS(palimpsest_paging_space_drop(&arm), OK);
    uint64_t flushes = k->flushes;
    IS(palimpsest_paging_unmap(&space, high, PAGE, PALIMPSEST_PAGING_ALSO_KERNEL), OK);
    CHECK(k->flushes > flushes);
    mapping.size = sizeof mapping;
    IS(palimpsest_paging_query(&space, high, &mapping), NOT_MAPPED);
    IS(palimpsest_paging_query(&space, high + PAGE, &mapping), OK);
    CHECK(mapping.attributes == kernels && mapping.len == PAGE && mapping.physical == DEVICE + PAGE);

    // Without memory nothing changes.
    uint64_t left = k->left;
    k->left = 0;
    IS(palimpsest_paging_map(&space, 1 << 21, DEVICE, PAGE, RW, small), NO_MEMORY);
    IS(palimpsest_paging_map(&space, 1ull << 30, DEVICE, 1 << 30, RW, small), NO_MEMORY);
    IS(palimpsest_paging_fork(&space, &moved, 2), NO_MEMORY);
    IS(palimpsest_paging_space_new(&moved, machine, format, 2, 1), NO_MEMORY);
    IS(palimpsest_paging_query(&space, 1 << 21, &mapping), NOT_MAPPED);
    k->left = left;
    IS(palimpsest_paging_space_drop(&space), OK);
    IS(palimpsest_paging_space_drop(&space), STALE);
    CHECK(used(k) == 0);
    CHECK(strcmp(palimpsest_paging_message(PALIMPSEST_PAGING_OK), "done") == 0);
    CHECK(strlen(palimpsest_paging_message(UINT32_MAX)) > 0);
}

// Pages that lie anywhere are mapped together or not at all; after an error, the caller has each reference as before.
static void pages_anywhere(struct kernel *k, struct palimpsest_paging_machine *machine) {
    static struct palimpsest_paging_space space;
    uint64_t start = (1ull << 21) - 2 * PAGE, taken = 0, pages[4], wrong[4];
    IS(palimpsest_paging_space_new(&space, machine, PALIMPSEST_PAGING_X86_64, 1, PALIMPSEST_PAGING_SHARE_LAST), OK);
    // Backwards, and with tables in between.
    for (int index = 3; index >= 0; index--) pages[index] = take(k);
    memcpy(wrong, pages, sizeof pages);
    wrong[3] += 8;
    IS(palimpsest_paging_map_pages(&space, start, wrong, 4, RW), PHYSICAL);
    wrong[3] = 0 - PAGE;
    IS(palimpsest_paging_map_pages(&space, start, wrong, 4, RW), PHYSICAL);
    // The last place is taken, and later there is no memory for the second table.
    IS(palimpsest_paging_map(&space, start + 3 * PAGE, taken = take(k), PAGE, RW, PALIMPSEST_PAGING_4K), OK);
    IS(palimpsest_paging_map_pages(&space, start, pages, 4, RW), MAPPED);
    IS(palimpsest_paging_unmap(&space, start + 3 * PAGE, PAGE, USERS), OK);
    CHECK(k->uses[index_of(taken)] == 0);
    uint64_t left = k->left;
    k->left = 1;
    IS(palimpsest_paging_map_pages(&space, start, pages, 4, RW), NO_MEMORY);
    k->left += left - 1;
    IS(palimpsest_paging_map_pages(&space, start, (uint64_t *)(void *)((char *)pages + 1), 3, RW), INVALID);
    IS(palimpsest_paging_map_pages(&space, start, NULL, 4, RW), INVALID);
    IS(palimpsest_paging_map_pages(&space, start, pages, UINT64_MAX / PAGE, RW), RANGE);
    IS(palimpsest_paging_map_pages(&space, start, pages, 0, RW), RANGE);
    struct palimpsest_paging_mapping found = {.size = sizeof found};
    for (int index = 0; index < 4; index++) {
        CHECK(k->uses[index_of(pages[index])] == 1);
        IS(palimpsest_paging_query(&space, start + index * PAGE, &found), NOT_MAPPED);
    }
    IS(palimpsest_paging_map_pages(&space, start, pages, 4, RW), OK);
    for (int index = 0; index < 4; index++) {
        IS(palimpsest_paging_query(&space, start + index * PAGE, &found), OK);
        CHECK(found.physical == pages[index] && found.len == PAGE && found.attributes == RW);
        IS(store(k, &space, start + index * PAGE, index + 1), OK);
        CHECK(*(uint64_t *)at(k, pages[index]) == (uint64_t)index + 1 && k->uses[index_of(pages[index])] == 1);
    }
    IS(palimpsest_paging_space_drop(&space), OK);
    CHECK(used(k) == 0);
}

// Every format makes, maps, forks and drops; AArch64 hears of new entries.
static void every_format_works(struct kernel *k, struct palimpsest_paging_machine *machine) {
    for (uint32_t format = PALIMPSEST_PAGING_X86_64; format <= PALIMPSEST_PAGING_SV48; format++) {
        static struct palimpsest_paging_space parent, child;
        uint64_t start = format == PALIMPSEST_PAGING_AARCH64_UPPER ? 0xffffff8000000000ull : 1 << 21;
        IS(palimpsest_paging_space_new(&parent, machine, format, 1, PALIMPSEST_PAGING_SHARE_LAST), OK);
        uint64_t made = k->entries_made;
        IS(palimpsest_paging_map(&parent, start, take(k), PAGE, RW, PALIMPSEST_PAGING_4K), OK);
        CHECK(k->entries_made > made);
        IS(palimpsest_paging_fork(&parent, &child, 2), OK);
        IS(palimpsest_paging_fault(&child, start, PALIMPSEST_PAGING_WRITE, NULL), OK);
        struct palimpsest_paging_mapping ours = {.size = sizeof ours}, theirs = {.size = sizeof theirs};
        IS(palimpsest_paging_query(&parent, start, &ours), OK);
        IS(palimpsest_paging_query(&child, start, &theirs), OK);
        CHECK(ours.physical != theirs.physical && ours.attributes == theirs.attributes);
        IS(palimpsest_paging_space_drop(&parent), OK);
        IS(palimpsest_paging_space_drop(&child), OK);
        CHECK(used(k) == 0);
    }
}

int main(int count, char **words) {
    static struct kernel k;
    k.left = FRAMES;
    k.memory = aligned_alloc(PAGE, FRAMES * PAGE);
    // Not cleared.
    k.metas = malloc(FRAMES * sizeof *k.metas);
    CHECK(k.memory && k.metas);
    memset(k.metas, 0xff, FRAMES * sizeof *k.metas);
    struct palimpsest_paging_machine machine = machine_of(&k);
    if (count > 1) {
        // A broken promise ends the program.
        static struct palimpsest_paging_space space;
        if (strcmp(words[1], "meta") == 0) machine.meta = no_meta;
        if (strcmp(words[1], "frame") == 0) machine.allocate_table = odd_frame;
        palimpsest_paging_space_new(&space, &machine, PALIMPSEST_PAGING_X86_64, 1, 1);
        return 0;
    }
    forks_in_constant_time(&k, &machine);
    for (k.format = PALIMPSEST_PAGING_X86_64; k.format <= PALIMPSEST_PAGING_SV48; k.format++) {
        for (uint32_t share = PALIMPSEST_PAGING_SHARE_NONE; share < levels_of(k.format); share++) {
            does_what_a_plain_list_does(&k, &machine, share);
        }
        large_pages_are_split(&k, &machine);
    }
    k.format = PALIMPSEST_PAGING_X86_64;
    refuses_mistakes(&k, &machine);
    pages_anywhere(&k, &machine);
    every_format_works(&k, &machine);
    free(k.memory);
    free(k.metas);
    return 0;
}
