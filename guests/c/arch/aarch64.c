// Faults, flushes, the console and the end, on AArch64 (Arm ARM).

#include "../kernel.h"

const uint32_t arch_format = PALIMPSEST_PAGING_AARCH64;
const uint64_t arch_memory = 0x40000000;
// The console, a PL011, in the device memory that start-up code calls type 1.
const uint64_t arch_device = 0x09000000, arch_device_len = PAGE;
const uint32_t arch_device_attributes = PALIMPSEST_PAGING_MEMORY_TYPE;
// RET.
const uint32_t arch_return = 0xd65f03c0;

extern char probes[], probes_end[], probe_failed[], arch_call_return[], arch_call_failed[];

void arch_put(char byte) {
    volatile uint32_t *const data = (volatile uint32_t *)(uintptr_t)0x09000000, *const flags = data + 6;
    while ((*flags & 32) != 0) {
    }
    *data = (uint8_t)byte;
}

// Semihosting, SYS_EXIT_EXTENDED with ADP_Stopped_ApplicationExit.
void arch_end(int has_passed) {
    const uint64_t block[2] = {0x20026, has_passed ? 33 : 35};
    for (;;) {
        register uint64_t operation __asm__("x0") = 0x20;
        register const uint64_t *argument __asm__("x1") = block;
        __asm__ volatile("hlt #0xf000" : "+r"(operation) : "r"(argument) : "memory");
    }
}

void arch_load_root(uint64_t root) {
    __asm__ volatile("dsb ishst\n\tmsr ttbr0_el1, %0\n\tisb" : : "r"(root) : "memory");
    arch_flush_all();
}

void arch_flush_page(uint64_t address) {
    const uint64_t page = address >> 12 & 0xfffffffffff;
    __asm__ volatile("dsb ishst\n\ttlbi vaae1is, %0\n\tdsb ish\n\tisb" : : "r"(page) : "memory");
}

void arch_flush_all(void) { __asm__ volatile("dsb ishst\n\ttlbi vmalle1is\n\tdsb ish\n\tisb" : : : "memory"); }

void arch_entries_made(void) { __asm__ volatile("dsb ishst\n\tisb" : : : "memory"); }

// B2.4.4: what was written as data is what is fetched. The shortest line that there can be is of 4 words.
void arch_make_executable(uint64_t address, uint64_t len) {
    for (uint64_t at = address & ~15ull; at < address + len; at += 16) {
        __asm__ volatile("dc cvau, %0" : : "r"(at) : "memory");
    }
    __asm__ volatile("dsb ish" : : : "memory");
    for (uint64_t at = address & ~15ull; at < address + len; at += 16) {
        __asm__ volatile("ic ivau, %0" : : "r"(at) : "memory");
    }
    __asm__ volatile("dsb ish\n\tisb" : : : "memory");
}

// As the handler keeps it.
struct frame {
    uint64_t x[19], x30, pc, state;
};

void arch_trap(struct frame *frame);

void arch_trap(struct frame *frame) {
    enum { FETCH = 0x21, ACCESS = 0x25 };
    uint64_t syndrome, address;
    __asm__ volatile("mrs %0, esr_el1" : "=r"(syndrome));
    __asm__ volatile("mrs %0, far_el1" : "=r"(address));
    uint64_t class = syndrome >> 26;
    if (class == FETCH || class == ACCESS) {
        // Bit 6: a store.
        uint32_t access = class == FETCH           ? PALIMPSEST_PAGING_EXECUTE
                          : (syndrome & 64) != 0 ? PALIMPSEST_PAGING_WRITE
                                                 : PALIMPSEST_PAGING_READ;
        if (on_page_fault(address, access)) {
            return;
        }
        if (frame->pc >= (uintptr_t)probes && frame->pc < (uintptr_t)probes_end) {
            frame->pc = (uintptr_t)probe_failed;
            return;
        }
        if (class == FETCH && frame->x30 == (uintptr_t)arch_call_return) {
            frame->pc = (uintptr_t)arch_call_failed;
            return;
        }
    }
    put_text("# exception of class ");
    put_number(class);
    put_text(" at ");
    put_number(frame->pc);
    put_text(", address ");
    put_number(address);
    put_text("\n");
    fail("exception", "nobody expects it");
}
