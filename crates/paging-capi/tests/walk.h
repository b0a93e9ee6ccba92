// What CPUs find in page tables: written from their manuals, apart from the library's own formats.
//
// x86-64: Intel SDM volume 3, 5.5 and 5.6. AArch64: Arm ARM, D8.2 to D8.4, stage 1, granule of 4 KiB, no hardware
// update of flags. RISC-V: privileged architecture, "Virtual Address Translation Process", A and D set by software.

#ifndef WALK_H
#define WALK_H

#include <palimpsest_paging.h>

#define MAY_READ 1
#define MAY_WRITE 2
#define MAY_EXECUTE 4

// What user mode finds at an address. `len` is 0 if there is nothing.
struct translation {
    uint64_t physical;
    // Of the page.
    uint64_t len;
    int rights;
};

// Returns the entry at `index` of the table at the physical address `table`.
typedef uint64_t (*read_entry)(void *context, uint64_t table, unsigned index);

static unsigned levels_of(uint32_t format) {
    return format == PALIMPSEST_PAGING_X86_64_LA57 ? 5 : format == PALIMPSEST_PAGING_SV39 ? 3 : 4;
}

// The length of what an entry of a level maps. Level 1 has pages.
static uint64_t reach_of(unsigned level) { return 1ull << (12 + 9 * (level - 1)); }

static int bit(uint64_t entry, unsigned number) { return entry >> number & 1; }

static struct translation found(uint64_t frame, uint64_t address, unsigned level, int rights) {
    uint64_t len = reach_of(level);
    struct translation there = {(frame & ~(len - 1)) | (address & (len - 1)), len, rights};
    return there;
}

static struct translation walk_x86_64(read_entry read, void *context, unsigned levels, uint64_t root,
                                      uint64_t address) {
    struct translation nothing = {0, 0, 0};
    uint64_t table = root;
    // Each level can take rights away: R/W, U/S, and XD.
    int writes = 1, user = 1, executes = 1;
    for (unsigned level = levels; level >= 1; level--) {
        uint64_t entry = read(context, table, address / reach_of(level) % 512);
        if (!bit(entry, 0)) return nothing;
        writes &= bit(entry, 1), user &= bit(entry, 2), executes &= !bit(entry, 63);
        uint64_t frame = entry & 0x000ffffffffff000ull;
        if (level == 1 || (level <= 3 && bit(entry, 7))) {
            return found(frame, address, level,
                         user ? MAY_READ | writes * MAY_WRITE | executes * MAY_EXECUTE : 0);
        }
        // Reserved, in entries above those that can be pages.
        if (bit(entry, 7)) return nothing;
        table = frame;
    }
    return nothing;
}

static struct translation walk_aarch64(read_entry read, void *context, uint64_t root, uint64_t address) {
    struct translation nothing = {0, 0, 0};
    uint64_t table = root;
    // APTable[1], APTable[0] and UXNTable of the levels above.
    int read_only = 0, no_user = 0, no_execute = 0;
    // The manual's lookup levels 0 to 3.
    for (unsigned level = 4; level >= 1; level--) {
        uint64_t entry = read(context, table, address / reach_of(level) % 512);
        if (!bit(entry, 0)) return nothing;
        uint64_t frame = entry & 0x0000fffffffff000ull;
        if (level > 1 && bit(entry, 1)) {
            no_user |= bit(entry, 61), read_only |= bit(entry, 62), no_execute |= bit(entry, 60);
            table = frame;
            continue;
        }
        // A block is at lookup level 1 or 2, and a page has bit 1.
        if (level == 4 || (level == 1 && !bit(entry, 1))) return nothing;
        // The access flag: without it every access faults.
        if (!bit(entry, 10)) return nothing;
        no_user |= !bit(entry, 6), read_only |= bit(entry, 7), no_execute |= bit(entry, 54);
        return found(frame, address, level,
                     no_user ? 0 : MAY_READ | !read_only * MAY_WRITE | !no_execute * MAY_EXECUTE);
    }
    return nothing;
}

static struct translation walk_riscv(read_entry read, void *context, unsigned levels, uint64_t root,
                                     uint64_t address) {
    struct translation nothing = {0, 0, 0};
    uint64_t table = root;
    for (unsigned level = levels; level >= 1; level--) {
        uint64_t entry = read(context, table, address / reach_of(level) % 512);
        int reads = bit(entry, 1), writes = bit(entry, 2), executes = bit(entry, 3);
        // Writable and not readable is reserved, and so are bits 60 to 54.
        if (!bit(entry, 0) || (writes && !reads) || entry >> 54 & 0x7f) return nothing;
        uint64_t frame = (entry >> 10 & 0xfffffffffffull) << 12;
        if (!reads && !executes) {
            // U, A and D, and the memory type, are reserved in pointers.
            if (bit(entry, 4) || bit(entry, 6) || bit(entry, 7) || entry >> 61) return nothing;
            table = frame;
            continue;
        }
        // A large page that is not aligned, and one that was not marked as used.
        if (frame % reach_of(level) != 0 || !bit(entry, 6)) return nothing;
        writes &= bit(entry, 7);
        return found(frame, address, level,
                     bit(entry, 4) ? reads * MAY_READ | writes * MAY_WRITE | executes * MAY_EXECUTE : 0);
    }
    return nothing;
}

static struct translation walk_format(uint32_t format, read_entry read, void *context, uint64_t root,
                                      uint64_t address) {
    switch (format) {
    case PALIMPSEST_PAGING_X86_64:
    case PALIMPSEST_PAGING_X86_64_LA57:
        return walk_x86_64(read, context, levels_of(format), root, address);
    case PALIMPSEST_PAGING_AARCH64:
    case PALIMPSEST_PAGING_AARCH64_UPPER:
        return walk_aarch64(read, context, root, address);
    default:
        return walk_riscv(read, context, levels_of(format), root, address);
    }
}

#endif
