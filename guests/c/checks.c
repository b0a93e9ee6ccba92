// What is checked: each result by the loads and stores of the CPU.

#include "kernel.h"

static const uint32_t RW = PALIMPSEST_PAGING_READ | PALIMPSEST_PAGING_WRITE;
static const uint64_t HERE = 0x500000000000, THERE = 0x510000200000;

static struct palimpsest_paging_space parent, child;
static const char *checking;

static const char *number_of_line(int line) {
    static char text[16];
    int at = sizeof text - 1;
    for (text[at] = 0; line > 0; line /= 10) {
        text[--at] = (char)('0' + line % 10);
    }
    return text + at;
}

#define MUST(condition)                                  \
    do {                                                 \
        if (!(condition)) {                              \
            put_text("# " #condition " is false\n");     \
            fail(checking, number_of_line(__LINE__));    \
        }                                                \
    } while (0)
#define IS(expected, call)                                            \
    do {                                                              \
        enum palimpsest_paging_result answer = (call);                \
        if (answer != PALIMPSEST_PAGING_##expected) {                 \
            put_text("# " #call ": ");                                \
            put_text(palimpsest_paging_message((uint32_t)answer));    \
            put_text("\n");                                           \
            fail(checking, number_of_line(__LINE__));                 \
        }                                                             \
    } while (0)

static uint64_t load(uint64_t address) {
    uint64_t value = 0;
    if (!arch_load(address, &value)) {
        fail(checking, "a load faults");
    }
    return value;
}

static int is_mapped(uint64_t address) {
    uint64_t value;
    return arch_load(address, &value);
}

static struct palimpsest_paging_stats stats(const struct palimpsest_paging_space *space) {
    struct palimpsest_paging_stats found = {.size = sizeof found};
    IS(OK, palimpsest_paging_space_stats(space, &found));
    return found;
}

// The kernel's own memory, the same in each space: its image at its physical addresses, where code cannot be written,
// and nothing else can be run; and all memory at DIRECT.
static void map_kernel(struct palimpsest_paging_space *space) {
    const uint32_t kernels = PALIMPSEST_PAGING_KERNEL | PALIMPSEST_PAGING_SHARED;
    const uint64_t text = (uintptr_t)text_start, data = (uintptr_t)text_end, end = (uintptr_t)image_end;
    IS(OK, palimpsest_paging_map(space, text, text, data - text, kernels | PALIMPSEST_PAGING_READ |
                                 PALIMPSEST_PAGING_EXECUTE, PALIMPSEST_PAGING_UP_TO_2M));
    IS(OK, palimpsest_paging_map(space, data, data, end - data, kernels | RW, PALIMPSEST_PAGING_UP_TO_2M));
    IS(OK, palimpsest_paging_map(space, DIRECT + arch_memory, arch_memory, 1 << 30, kernels | RW,
                                 PALIMPSEST_PAGING_ONLY_1G));
    if (arch_device_len != 0) {
        IS(OK, palimpsest_paging_map(space, arch_device, arch_device, arch_device_len,
                                     kernels | RW | arch_device_attributes, PALIMPSEST_PAGING_4K));
    }
}

static void pages_are_where_they_were_mapped(void) {
    uint64_t frames[3];
    for (int page = 0; page < 3; page++) {
        frames[page] = take_frame();
        IS(OK, palimpsest_paging_map(&parent, HERE + page * PAGE, frames[page], PAGE, RW, PALIMPSEST_PAGING_4K));
        MUST(arch_store(HERE + page * PAGE + 8, 40 + page));
    }
    for (int page = 0; page < 3; page++) {
        MUST(load(HERE + page * PAGE + 8) == 40u + page && *(at(frames[page]) + 1) == 40u + page);
    }
    MUST(!is_mapped(HERE - PAGE) && !is_mapped(HERE + 3 * PAGE));
    struct palimpsest_paging_mapping mapping = {.size = sizeof mapping};
    IS(OK, palimpsest_paging_query(&parent, HERE + PAGE + 5, &mapping));
    MUST(mapping.physical == frames[1] && mapping.start == HERE + PAGE && mapping.len == PAGE);
    IS(MAPPED, palimpsest_paging_map(&parent, HERE, frames[0], PAGE, RW, PALIMPSEST_PAGING_4K));
}

static void rights_are_the_walkers(void) {
    MUST(arch_store(HERE, 1));
    IS(OK, palimpsest_paging_protect(&parent, HERE, PAGE, PALIMPSEST_PAGING_READ, PALIMPSEST_PAGING_USERS_ONLY));
    MUST(!arch_store(HERE, 2) && load(HERE) == 1);
    IS(OK, palimpsest_paging_protect(&parent, HERE, PAGE, 0, PALIMPSEST_PAGING_USERS_ONLY));
    MUST(!is_mapped(HERE));
    IS(OK, palimpsest_paging_protect(&parent, HERE, PAGE, RW, PALIMPSEST_PAGING_USERS_ONLY));
    MUST(arch_store(HERE, 3) && load(HERE) == 3);

    const uint32_t kernels = PALIMPSEST_PAGING_KERNEL | PALIMPSEST_PAGING_SHARED | PALIMPSEST_PAGING_READ;
    uint64_t code = take_frame();
    *at(code) = arch_return;
    arch_make_executable(DIRECT + code, 4);
    IS(OK, palimpsest_paging_map(&parent, THERE, code, PAGE, kernels, PALIMPSEST_PAGING_4K));
    MUST(!arch_call(THERE));
    IS(KERNELS, palimpsest_paging_protect(&parent, THERE, PAGE, 5, PALIMPSEST_PAGING_USERS_ONLY));
    IS(OK, palimpsest_paging_protect(&parent, THERE, PAGE, PALIMPSEST_PAGING_READ | PALIMPSEST_PAGING_EXECUTE,
                                     PALIMPSEST_PAGING_ALSO_KERNEL));
    MUST(arch_call(THERE));
    IS(OK, palimpsest_paging_unmap(&parent, THERE, PAGE, PALIMPSEST_PAGING_ALSO_KERNEL));
    MUST(!arch_call(THERE) && uses_of(code) == 0);
}

static void what_is_unmapped_is_gone(void) {
    struct palimpsest_paging_mapping mapping = {.size = sizeof mapping};
    IS(OK, palimpsest_paging_query(&parent, HERE + 2 * PAGE, &mapping));
    // In the TLB before.
    MUST(is_mapped(HERE + 2 * PAGE) && uses_of(mapping.physical) == 1);
    IS(OK, palimpsest_paging_unmap(&parent, HERE + 2 * PAGE, PAGE, PALIMPSEST_PAGING_USERS_ONLY));
    MUST(!is_mapped(HERE + 2 * PAGE) && uses_of(mapping.physical) == 0);
    MUST(is_mapped(HERE) && is_mapped(HERE + PAGE));
}

static void a_fork_copies_what_is_written(void) {
    MUST(arch_store(HERE, 100) && arch_store(HERE + PAGE, 200));
    struct palimpsest_paging_mapping before = {.size = sizeof before}, after = before;
    IS(OK, palimpsest_paging_query(&parent, HERE, &before));
    uint64_t free = free_frames();
    IS(OK, palimpsest_paging_fork(&parent, &child, 2));
    // The tables of 4 KiB pages are shared: the child has its root, and the tables that lead there.
    put_text("# a fork takes ");
    put_number(free - free_frames());
    put_text(" tables\n");
    MUST(free - free_frames() < 16);
    uint64_t faulted = faults;
    // The parent's own store is a fault, too, and copies.
    MUST(arch_store(HERE, 101) && faults == faulted + 1 && last_resolution.page_copied == 1);
    MUST(load(HERE) == 101);
    run(&child);
    MUST(load(HERE) == 100 && load(HERE + PAGE) == 200);
    MUST(arch_store(HERE + PAGE, 201) && last_resolution.page_copied == 1 && load(HERE + PAGE) == 201);
    // Nobody else has this page any more.
    MUST(arch_store(HERE, 102) && last_resolution.page_reused == 1 && load(HERE) == 102);
    IS(OK, palimpsest_paging_query(&child, HERE, &after));
    MUST(after.physical == before.physical);
    run(&parent);
    MUST(load(HERE) == 101 && load(HERE + PAGE) == 200);
    MUST(arch_store(HERE + PAGE, 202) && last_resolution.page_reused == 1);
    run(&child);
    MUST(load(HERE + PAGE) == 201);
    run(&parent);
    MUST(load(HERE + PAGE) == 202);
    IS(OK, palimpsest_paging_space_drop(&child));
    IS(STALE, palimpsest_paging_space_drop(&child));
}

static void large_pages_are_split_and_merged(void) {
    uint64_t large = take_large();
    MUST(large != 0);
    IS(OK, palimpsest_paging_map(&parent, THERE, large, LARGE, RW, PALIMPSEST_PAGING_ONLY_2M));
    for (uint64_t offset = 0; offset < LARGE; offset += PAGE) {
        MUST(arch_store(THERE + offset, offset));
    }
    MUST(*at(large + 7 * PAGE) == 7 * PAGE);
    int64_t tables = stats(&parent).tables;
    uint32_t merged = 9;
    IS(OK, palimpsest_paging_split(&parent, THERE, LARGE));
    MUST(stats(&parent).tables == tables + 1 && load(THERE + 511 * PAGE) == 511 * PAGE);
    IS(OK, palimpsest_paging_merge(&parent, THERE, PALIMPSEST_PAGING_ONLY_2M, &merged));
    MUST(merged == 1 && stats(&parent).tables == tables && load(THERE + 5 * PAGE) == 5 * PAGE);
    // A hole, which is one page of 4 KiB.
    IS(OK, palimpsest_paging_unmap(&parent, THERE + 9 * PAGE, PAGE, PALIMPSEST_PAGING_USERS_ONLY));
    MUST(!is_mapped(THERE + 9 * PAGE) && uses_of(large + 9 * PAGE) == 0);
    MUST(load(THERE + 8 * PAGE) == 8 * PAGE && load(THERE + 10 * PAGE) == 10 * PAGE);
    IS(OK, palimpsest_paging_merge(&parent, THERE, PALIMPSEST_PAGING_ONLY_2M, &merged));
    MUST(merged == 0);
    IS(OK, palimpsest_paging_unmap(&parent, THERE, LARGE, PALIMPSEST_PAGING_USERS_ONLY));
    MUST(!is_mapped(THERE) && uses_of(large) == 0 && stats(&parent).tables < tables + 1);
}

static void count(void *argument, uint64_t address) {
    (void)address;
    ++*(int *)argument;
}

static void marks_are_set_by_accesses(void) {
    uint64_t marked;
    int taken = 0;
    IS(OK, palimpsest_paging_take_marks(&parent, HERE, 2 * PAGE, PALIMPSEST_PAGING_DIRTY, count, &taken));
    IS(OK, palimpsest_paging_take_marks(&parent, HERE, 2 * PAGE, PALIMPSEST_PAGING_ACCESSED, count, &taken));
    MUST(taken == 4);
    IS(OK, palimpsest_paging_count_marked(&parent, HERE, 2 * PAGE, PALIMPSEST_PAGING_ACCESSED, &marked));
    MUST(marked == 0);
    MUST(load(HERE + PAGE) == 202);
    IS(OK, palimpsest_paging_count_marked(&parent, HERE, 2 * PAGE, PALIMPSEST_PAGING_ACCESSED, &marked));
    MUST(marked == 1);
    IS(OK, palimpsest_paging_count_marked(&parent, HERE, 2 * PAGE, PALIMPSEST_PAGING_DIRTY, &marked));
    MUST(marked == 0);
    MUST(arch_store(HERE, 103));
    IS(OK, palimpsest_paging_count_marked(&parent, HERE, 2 * PAGE, PALIMPSEST_PAGING_DIRTY, &marked));
    MUST(marked == 1);
}

static void what_moves_is_there_and_not_here(void) {
    MUST(load(HERE) == 103 && load(HERE + PAGE) == 202);
    IS(RANGE, palimpsest_paging_move(&parent, HERE, 2 * PAGE, HERE + PAGE, PALIMPSEST_PAGING_USERS_ONLY));
    IS(OK, palimpsest_paging_move(&parent, HERE, 2 * PAGE, THERE, PALIMPSEST_PAGING_USERS_ONLY));
    MUST(!is_mapped(HERE) && !is_mapped(HERE + PAGE) && load(THERE) == 103 && load(THERE + PAGE) == 202);
    IS(OK, palimpsest_paging_move(&parent, THERE, 2 * PAGE, HERE, PALIMPSEST_PAGING_USERS_ONLY));
    MUST(load(HERE) == 103 && load(HERE + PAGE) == 202 && !is_mapped(THERE));
}

static int add(void *argument, const struct palimpsest_paging_mapping *mapping) {
    *(uint64_t *)argument += mapping->len;
    return 0;
}

// Of four pages: keeps the first, takes the second, protects the third, and stops before the fourth.
static uint32_t decide(void *argument, const struct palimpsest_paging_mapping *mapping) {
    ++*(int *)argument;
    switch ((mapping->start - THERE) / PAGE) {
    case 0:
        return PALIMPSEST_PAGING_KEEP;
    case 1:
        return PALIMPSEST_PAGING_TAKE;
    case 2:
        return PALIMPSEST_PAGING_PROTECT + PALIMPSEST_PAGING_READ;
    default:
        return PALIMPSEST_PAGING_STOP;
    }
}

static void many_pages_are_changed_at_once(void) {
    uint64_t frames[6], bytes = 0;
    for (int page = 0; page < 6; page++) {
        frames[page] = take_frame();
        *at(frames[page]) = 900 + page;
    }
    // One of them is none: nothing is mapped, and the references are still ours.
    uint64_t last = frames[5];
    frames[5] += 8;
    IS(PHYSICAL, palimpsest_paging_map_pages(&parent, THERE, frames, 6, RW));
    MUST(!is_mapped(THERE) && uses_of(frames[0]) == 1);
    frames[5] = last;
    IS(OK, palimpsest_paging_map_pages(&parent, THERE, frames, 6, RW));
    for (int page = 0; page < 6; page++) {
        MUST(load(THERE + page * PAGE) == 900u + page);
    }
    IS(OK, palimpsest_paging_walk(&parent, THERE, LARGE, add, &bytes));
    MUST(bytes == 6 * PAGE);
    int asked = 0;
    IS(OK, palimpsest_paging_edit(&parent, THERE, LARGE, decide, &asked, PALIMPSEST_PAGING_USERS_ONLY));
    MUST(asked == 4 && arch_store(THERE, 1) && !is_mapped(THERE + PAGE) && uses_of(frames[1]) == 0);
    MUST(!arch_store(THERE + 2 * PAGE, 1) && load(THERE + 2 * PAGE) == 902 && arch_store(THERE + 3 * PAGE, 1));
    IS(OK, palimpsest_paging_unmap(&parent, THERE, LARGE, PALIMPSEST_PAGING_USERS_ONLY));
}

static const struct {
    const char *name;
    void (*run)(void);
} CHECKS[] = {
    {"pages_are_where_they_were_mapped", pages_are_where_they_were_mapped},
    {"rights_are_the_walkers", rights_are_the_walkers},
    {"what_is_unmapped_is_gone", what_is_unmapped_is_gone},
    {"a_fork_copies_what_is_written", a_fork_copies_what_is_written},
    {"large_pages_are_split_and_merged", large_pages_are_split_and_merged},
    {"marks_are_set_by_accesses", marks_are_set_by_accesses},
    {"what_moves_is_there_and_not_here", what_moves_is_there_and_not_here},
    {"many_pages_are_changed_at_once", many_pages_are_changed_at_once},
};

void kernel_main(void) {
    enum { COUNT = sizeof CHECKS / sizeof *CHECKS };
    checking = "begin";
    MUST(palimpsest_paging_version() == PALIMPSEST_PAGING_VERSION);
    // A root that nothing else is mapped by, for the end.
    static struct palimpsest_paging_space last;
    IS(OK, palimpsest_paging_space_new(&last, &machine, arch_format, 9, PALIMPSEST_PAGING_SHARE_LAST));
    map_kernel(&last);
    uint64_t free = free_frames();
    IS(OK, palimpsest_paging_space_new(&parent, &machine, arch_format, 1, PALIMPSEST_PAGING_SHARE_LAST));
    map_kernel(&parent);
    run(&parent);
    for (int check = 0; check < COUNT; check++) {
        checking = CHECKS[check].name;
        CHECKS[check].run();
        put_text("ok ");
        put_text(checking);
        put_text("\n");
    }
    checking = "everything_is_given_back";
    run(&last);
    IS(OK, palimpsest_paging_space_drop(&parent));
    MUST(free_frames() == free);
    put_text("ok everything_is_given_back\n");
    put_number(COUNT + 1);
    put_text(" of ");
    put_number(COUNT + 1);
    put_text(" checks passed\n");
    arch_end(1);
}
