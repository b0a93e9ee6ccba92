// What the library asks of a kernel, and what becomes of page faults.

#include "kernel.h"

// How many use each frame.
static uint32_t uses[FRAMES];
static struct palimpsest_paging_meta metas[FRAMES];
struct palimpsest_paging_space *running;
struct palimpsest_paging_resolution last_resolution = {.size = sizeof last_resolution};
uint32_t faults;

void put_text(const char *text) {
    while (*text != 0) {
        arch_put(*text++);
    }
}

void put_number(uint64_t number) {
    if (number >= 10) {
        put_number(number / 10);
    }
    arch_put((char)('0' + number % 10));
}

void fail(const char *what, const char *why) {
    put_text("FAILED ");
    put_text(what);
    put_text(": ");
    put_text(why);
    put_text("\n");
    arch_end(0);
}

void palimpsest_paging_panic(const char *message, size_t len);

void palimpsest_paging_panic(const char *message, size_t len) {
    put_text("FAILED panic: ");
    for (size_t at = 0; at < len; at++) {
        arch_put(message[at] == '\n' ? ' ' : message[at]);
    }
    put_text("\n");
    arch_end(0);
}

// The first frame, behind the kernel's image.
static uint64_t first_frame(void) { return arch_memory + (64 << 20); }

static uint64_t index_of(uint64_t physical) { return (physical - first_frame()) / PAGE; }

// The page of 1 GiB is not.
static int is_counted(uint64_t physical) { return physical >= first_frame() && index_of(physical) < FRAMES; }

uint32_t uses_of(uint64_t physical) { return uses[index_of(physical)]; }

uint64_t free_frames(void) {
    uint64_t count = 0;
    for (uint64_t index = 0; index < FRAMES; index++) {
        count += uses[index] == 0;
    }
    return count;
}

// Frames are handed out from the end, so that whole large pages are left at the beginning. What is in them is not zero.
uint64_t take_frame(void) {
    for (uint64_t index = FRAMES; index-- > 0;) {
        if (uses[index] == 0) {
            uses[index] = 1;
            uint64_t frame = first_frame() + index * PAGE;
            for (uint64_t word = 0; word < PAGE / 8; word++) {
                at(frame)[word] = 0xa5a5a5a5a5a5a5a5;
            }
            return frame;
        }
    }
    return 0;
}

uint64_t take_large(void) {
    enum { PARTS = LARGE / PAGE };
    for (uint64_t first = 0; first + PARTS <= FRAMES; first += PARTS) {
        uint64_t free = 0;
        while (free < PARTS && uses[first + free] == 0) {
            free++;
        }
        if (free == PARTS) {
            for (uint64_t index = first; index < first + PARTS; index++) {
                uses[index] = 1;
            }
            return first_frame() + first * PAGE;
        }
    }
    return 0;
}

static uint64_t allocate_table(void *context) {
    (void)context;
    return take_frame();
}

static void free_table(void *context, uint64_t table) {
    (void)context;
    uses[index_of(table)] = 0;
}

static struct palimpsest_paging_meta *meta(void *context, uint64_t table) {
    (void)context;
    return &metas[index_of(table)];
}

static void flush(void *context, const struct palimpsest_paging_flush *request) {
    (void)context;
    if (request->count == 0) {
        arch_flush_all();
    }
    for (size_t index = 0; index < request->count; index++) {
        const struct palimpsest_paging_range range = request->ranges[index];
        if (range.end - range.start > 64 * PAGE) {
            arch_flush_all();
            continue;
        }
        for (uint64_t address = range.start; address != range.end; address += PAGE) {
            arch_flush_page(address);
        }
    }
}

static void entries_made(void *context) {
    (void)context;
    arch_entries_made();
}

static void retain(void *context, uint64_t page, uint64_t len) {
    (void)context;
    for (uint64_t frame = page; frame < page + len && is_counted(frame); frame += PAGE) {
        uses[index_of(frame)]++;
    }
}

static void release(void *context, uint64_t page, uint64_t len) {
    (void)context;
    for (uint64_t frame = page; frame < page + len && is_counted(frame); frame += PAGE) {
        if (uses[index_of(frame)]-- == 0) {
            fail("release", "a frame is given back twice");
        }
        if (uses[index_of(frame)] == 0) {
            // Whoever still reaches it finds nonsense.
            for (uint64_t word = 0; word < PAGE / 8; word++) {
                at(frame)[word] = 0x5a5a5a5a5a5a5a5a;
            }
        }
    }
}

static int is_exclusive(void *context, uint64_t page, uint64_t len) {
    (void)context;
    int is_alone = is_counted(page);
    for (uint64_t frame = page; is_alone && frame < page + len; frame += PAGE) {
        is_alone = uses[index_of(frame)] == 1;
    }
    return is_alone;
}

static uint64_t copy(void *context, uint64_t page, uint64_t len) {
    (void)context;
    uint64_t made = len == PAGE ? take_frame() : 0;
    for (uint64_t word = 0; made != 0 && word < len / 8; word++) {
        at(made)[word] = at(page)[word];
    }
    return made;
}

struct palimpsest_paging_machine machine = {
    .size = sizeof machine,
    .physical_offset = 0x400000000000,
    .allocate_table = allocate_table,
    .free_table = free_table,
    .meta = meta,
    .flush = flush,
    .entries_made = entries_made,
    .page_retain = retain,
    .page_release = release,
    .page_is_exclusive = is_exclusive,
    .page_copy = copy,
};

void run(struct palimpsest_paging_space *space) {
    uint64_t root;
    if (palimpsest_paging_root(space, &root) != PALIMPSEST_PAGING_OK) {
        fail("run", "there is no root");
    }
    running = space;
    arch_load_root(root);
}

int on_page_fault(uint64_t address, uint32_t access) {
    faults++;
    if (running == NULL) {
        return 0;
    }
    return palimpsest_paging_fault(running, address, access | PALIMPSEST_PAGING_KERNEL, &last_resolution) ==
           PALIMPSEST_PAGING_OK;
}
