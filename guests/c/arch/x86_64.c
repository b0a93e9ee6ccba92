// Faults, flushes, the console and the end, on x86-64 (Intel SDM volume 3).

#include "../kernel.h"

const uint32_t arch_format = PALIMPSEST_PAGING_X86_64;
const uint64_t arch_memory = 0;
// The console is not in memory.
const uint64_t arch_device, arch_device_len;
const uint32_t arch_device_attributes;
// RET, and what is never run.
const uint32_t arch_return = 0xccccccc3;

// Exceptions, each with 16 bytes of code (arch/x86_64.S).
extern char traps[], probes[], probes_end[], probe_failed[], arch_call_return[];
enum { TRAPS = 15, PAGE_FAULT = 14 };

static void out(uint16_t port, uint8_t value) { __asm__ volatile("outb %0, %1" : : "a"(value), "Nd"(port)); }

static uint8_t in(uint16_t port) {
    uint8_t value;
    __asm__ volatile("inb %1, %0" : "=a"(value) : "Nd"(port));
    return value;
}

void arch_put(char byte) {
    enum { DATA = 0x3f8, STATUS = 0x3fd, EMPTY = 0x20 };
    while ((in(STATUS) & EMPTY) == 0) {
    }
    out(DATA, (uint8_t)byte);
}

// QEMU's isa-debug-exit ends with twice the value plus one.
void arch_end(int has_passed) {
    uint32_t value = has_passed ? 0x10 : 0x11;
    for (;;) {
        __asm__ volatile("outl %0, %1" : : "a"(value), "Nd"((uint16_t)0xf4));
    }
}

void arch_load_root(uint64_t root) { __asm__ volatile("mov %0, %%cr3" : : "r"(root) : "memory"); }

void arch_flush_page(uint64_t address) { __asm__ volatile("invlpg (%0)" : : "r"(address) : "memory"); }

// No translation is global here: CR4.PGE is clear.
void arch_flush_all(void) {
    uint64_t root;
    __asm__ volatile("mov %%cr3, %0\n\tmov %0, %%cr3" : "=r"(root) : : "memory");
}

void arch_entries_made(void) {}

void arch_make_executable(uint64_t address, uint64_t len) { (void)address, (void)len; }

void arch_begin(void);

// Makes the table of exceptions (6.14.1).
void arch_begin(void) {
    static struct {
        uint16_t low, selector, flags, middle;
        uint32_t high, reserved;
    } gates[TRAPS];
    for (uint64_t vector = 0; vector < TRAPS; vector++) {
        uint64_t address = (uintptr_t)traps + 16 * vector;
        gates[vector].low = (uint16_t)address;
        gates[vector].middle = (uint16_t)(address >> 16);
        gates[vector].high = (uint32_t)(address >> 32);
        gates[vector].selector = 8;
        gates[vector].flags = 0x8e00;
    }
    struct __attribute__((packed)) {
        uint16_t limit;
        uint64_t base;
    } table = {sizeof gates - 1, (uintptr_t)gates};
    __asm__ volatile("lidt %0" : : "m"(table));
}

void arch_trap(uint64_t vector, uint64_t code, uint64_t *frame);

// `frame` is RIP, CS, flags, RSP and SS.
void arch_trap(uint64_t vector, uint64_t code, uint64_t *frame) {
    uint64_t address;
    __asm__ volatile("mov %%cr2, %0" : "=r"(address));
    if (vector == PAGE_FAULT) {
        // Bit 1: a store. Bit 4: a fetch.
        uint32_t access = (code & 16) != 0   ? PALIMPSEST_PAGING_EXECUTE
                          : (code & 2) != 0  ? PALIMPSEST_PAGING_WRITE
                                             : PALIMPSEST_PAGING_READ;
        if (on_page_fault(address, access)) {
            return;
        }
        if (frame[0] >= (uintptr_t)probes && frame[0] < (uintptr_t)probes_end) {
            frame[0] = (uintptr_t)probe_failed;
            return;
        }
        // A call: what it has put on the stack is taken away.
        uint64_t *stack = (uint64_t *)(uintptr_t)frame[3];
        if (frame[0] == address && stack[0] == (uintptr_t)arch_call_return) {
            frame[0] = (uintptr_t)probe_failed;
            frame[3] += 8;
            return;
        }
    }
    put_text("# exception ");
    put_number(vector);
    put_text(" at ");
    put_number(frame[0]);
    put_text(", address ");
    put_number(address);
    put_text("\n");
    fail("exception", "nobody expects it");
}
