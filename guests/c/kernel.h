// What the parts of the kernel know of each other.
#ifndef KERNEL_H
#define KERNEL_H

#include <palimpsest_paging.h>

enum { PAGE = 4096, LARGE = 2 << 20, FRAMES = 4096 };

// arch/

extern const uint32_t arch_format;
// Where the machine's memory begins; it has more than what is used here.
extern const uint64_t arch_memory;
// Where devices are that the kernel uses, and their memory type; none with a length of 0.
extern const uint64_t arch_device, arch_device_len;
extern const uint32_t arch_device_attributes;

void arch_put(char byte);
__attribute__((noreturn)) void arch_end(int has_passed);
void arch_load_root(uint64_t root);
void arch_flush_page(uint64_t address);
void arch_flush_all(void);
void arch_entries_made(void);

// Loads, stores, or calls at an address. Return 1, or 0 if that faults and nobody resolves it.
int arch_load(uint64_t address, uint64_t *value);
int arch_store(uint64_t address, uint64_t value);
int arch_call(uint64_t address);
// A function of the machine's, which returns at once.
extern const uint32_t arch_return;
void arch_make_executable(uint64_t address, uint64_t len);

// The linker's.
extern char text_start[], text_end[], image_start[], image_end[];

// machine.c

// Where the kernel finds physical address 0: in start-up code's tables, and in each space, by one page of 1 GiB. The
// frames that are counted are mapped there, too, and that is no use of them.
static const uint64_t DIRECT = 0x400000000000;
static inline volatile uint64_t *at(uint64_t physical) { return (volatile uint64_t *)(uintptr_t)(DIRECT + physical); }
uint64_t take_frame(void);
uint64_t take_large(void);
uint32_t uses_of(uint64_t physical);
uint64_t free_frames(void);
extern struct palimpsest_paging_machine machine;
// The space that the CPU runs.
extern struct palimpsest_paging_space *running;
void run(struct palimpsest_paging_space *space);
// Called for page faults. Returns 1 if the access can be repeated.
int on_page_fault(uint64_t address, uint32_t access);
// What the last fault has done, and how many there were.
extern struct palimpsest_paging_resolution last_resolution;
extern uint32_t faults;
__attribute__((noreturn)) void fail(const char *what, const char *why);
void put_text(const char *text);
void put_number(uint64_t number);

// checks.c

void kernel_main(void);

#endif
