// Palimpsest's page tables for kernels, hypervisors and VMMs in C and C++, without a C library. A fork shares tables
// until one side changes them. Made from the Rust sources by cbindgen; do not edit.
//
// Link libpalimpsest_paging_capi.a. It calls what struct palimpsest_paging_machine has, and, built for a target without
// an operating system, `void palimpsest_paging_panic(const char *message, size_t len)`, which you define, and which must
// not return: it gets the message, without a zero at its end, when one of your callbacks broke its promise, or this
// library has a defect.
//
// Functions return an enum palimpsest_paging_result. After an error the tables translate as before. Several CPUs may
// call functions for one space at a time, except that palimpsest_paging_space_new and palimpsest_paging_space_drop need
// it alone. Flushes are done, and memory is given back, before a function returns. Callbacks run on the CPU that called,
// and may not call functions for the same space, throw, or leave by longjmp.


#ifndef PALIMPSEST_PAGING_H
#define PALIMPSEST_PAGING_H

#include <stddef.h>
#include <stdint.h>

// x86-64 with four levels.
#define PALIMPSEST_PAGING_X86_64 0

// x86-64 with five levels.
#define PALIMPSEST_PAGING_X86_64_LA57 1

// AArch64, TTBR0: four levels, pages of 4 KiB. TCR_EL1.HPDn must be clear.
#define PALIMPSEST_PAGING_AARCH64 2

// AArch64, TTBR1.
#define PALIMPSEST_PAGING_AARCH64_UPPER 3

// RISC-V with three levels.
#define PALIMPSEST_PAGING_SV39 4

// RISC-V with four levels.
#define PALIMPSEST_PAGING_SV48 5

// Forks copy all tables.
#define PALIMPSEST_PAGING_SHARE_NONE 0

// Forks share tables of pages of 4 KiB. Each number more shares tables of one more level, up to the level below the
// root: forks cost less, and the first store to each region more.
#define PALIMPSEST_PAGING_SHARE_LAST 1

// Loads.
#define PALIMPSEST_PAGING_READ 1

// Stores.
#define PALIMPSEST_PAGING_WRITE 2

// Instruction fetches.
#define PALIMPSEST_PAGING_EXECUTE 4

// Of a page: only the kernel may use it. Of an access: made by the kernel.
#define PALIMPSEST_PAGING_KERNEL 8

// The translation is the same in all spaces, and survives a switch. Only with PALIMPSEST_PAGING_SHARED.
#define PALIMPSEST_PAGING_GLOBAL 16

// After a fork both spaces store to the same page. Without it each gets its own by the first store.
#define PALIMPSEST_PAGING_SHARED 32

// Times the index of the memory type in the CPU's own table (PAT, MAIR_EL1, PBMT), 0 to 255.
#define PALIMPSEST_PAGING_MEMORY_TYPE 256

// Pages of 4 KiB.
#define PALIMPSEST_PAGING_4K 0

// Pages of up to 2 MiB, the largest for which both addresses and the length are aligned.
#define PALIMPSEST_PAGING_UP_TO_2M 1

// Pages of up to 1 GiB, likewise.
#define PALIMPSEST_PAGING_UP_TO_1G 2

// Pages of 2 MiB, or an error.
#define PALIMPSEST_PAGING_ONLY_2M 3

// Pages of 1 GiB, or an error.
#define PALIMPSEST_PAGING_ONLY_1G 4

// Changes user mode's pages, and refuses a range with a page of the kernel.
#define PALIMPSEST_PAGING_USERS_ONLY 0

// Also changes pages of the kernel. The caller uses none of those that it takes away or restricts: neither as code,
// nor as its stack or data.
#define PALIMPSEST_PAGING_ALSO_KERNEL 1

// The page was used since its mark was last cleared.
#define PALIMPSEST_PAGING_ACCESSED 1

// The page was written since its mark was last cleared.
#define PALIMPSEST_PAGING_DIRTY 2

// What became of a call.
enum palimpsest_paging_result {
  // Done.
  PALIMPSEST_PAGING_OK = 0,
  // A pointer is null or not aligned, a callback is missing, a size is wrong, or a number has no meaning here.
  PALIMPSEST_PAGING_INVALID = 1,
  // The space was not made, was dropped, or was copied to another address.
  PALIMPSEST_PAGING_STALE = 2,
  // The memory for a space is not zero: there is a space in it, or it was never cleared.
  PALIMPSEST_PAGING_IN_USE = 3,
  // There is no memory for tables.
  PALIMPSEST_PAGING_NO_MEMORY = 4,
  // A page must be copied, and there is no memory for the copy.
  PALIMPSEST_PAGING_NO_PAGE = 5,
  // The virtual addresses are none, not whole pages, not canonical, or include the last page of all.
  PALIMPSEST_PAGING_RANGE = 6,
  // The physical address is no multiple of 4096, or is above what this machine or this format has.
  PALIMPSEST_PAGING_PHYSICAL = 7,
  // An address, or the length, is no multiple of the only size of pages that was allowed.
  PALIMPSEST_PAGING_ALIGNMENT = 8,
  // Rights without the right to read, a memory type that entries cannot name, or pages that are global and private.
  PALIMPSEST_PAGING_ATTRIBUTES = 9,
  // Something is mapped there; unmap it first.
  PALIMPSEST_PAGING_MAPPED = 10,
  // Nothing is mapped there.
  PALIMPSEST_PAGING_NOT_MAPPED = 11,
  // The access is not allowed.
  PALIMPSEST_PAGING_DENIED = 12,
  // A page there is the kernel's, which the caller may be running on; `PALIMPSEST_PAGING_ALSO_KERNEL` changes it.
  PALIMPSEST_PAGING_KERNELS = 13,
};

// An address space. Its memory is yours: clear it before palimpsest_paging_space_new, and leave it where it is until
// palimpsest_paging_space_drop, which clears it. A space at another address than it was made at is
// PALIMPSEST_PAGING_STALE.
struct palimpsest_paging_space {
  // The library's.
  uint64_t private_words[80];
};

// The library's own data of a table. You keep one for each frame that can be a table, and need not clear it.
struct palimpsest_paging_meta {
  // The library's.
  uint64_t private_words[8];
};

// Virtual addresses from `start` to before `end`: whole pages.
struct palimpsest_paging_range {
  // The first address.
  uint64_t start;
  // The address behind the last.
  uint64_t end;
};

// What must leave the TLBs of every CPU that runs a space.
struct palimpsest_paging_flush {
  // The space's number.
  uint64_t space;
  // Its addresses, which may overlap; null for all.
  const struct palimpsest_paging_range *ranges;
  // The number of ranges; 0 for all addresses.
  size_t count;
  // 1 if entries that lead to tables have changed, 0 if only those of pages have: then AArch64 may use `tlbi
  // vale1is`, and RISC-V `sfence.vma` with an address.
  uint32_t tables;
  // Zero.
  uint32_t reserved;
};

// What a space needs from your kernel. It is copied when a space is made, and may be gone afterwards; what `context`
// points to may not. Callbacks marked as optional may be null.
//
// Callbacks may be called on any CPU that calls functions of this library, and with the lock of a space held.
struct palimpsest_paging_machine {
  // `sizeof(struct palimpsest_paging_machine)`.
  size_t size;
  // What callbacks get.
  void *context;
  // The virtual address of physical address 0, modulo 2^64: where CPUs that call this library can read and write all
  // tables. A multiple of 4096.
  uint64_t physical_offset;
  // The first physical address that the CPUs do not have (x86-64: 2 to the power of CPUID 80000008H EAX, bits 7 to
  // 0); 0 for as many as the format's entries can hold.
  uint64_t physical_end;
  // Returns the physical address of 4096 bytes that nobody else uses, or 0 if there are none. They need not be zero.
  // Any function may call this.
  uint64_t (*allocate_table)(void *context);
  // Takes back what `allocate_table` has returned. No CPU can reach it as a table any more.
  void (*free_table)(void *context, uint64_t table);
  // Returns the data of a table: the same for the same table as long as it is allocated, and another one for each.
  struct palimpsest_paging_meta *(*meta)(void *context, uint64_t table);
  // Optional. Returns about how many tables could be allocated at the moment. A call that needs many more fails at
  // once, before it takes any.
  uint64_t (*free_tables)(void *context);
  // Removes translations from the TLBs of all CPUs that run the space, the calling one included, and returns when
  // none of them holds one. An interrupt that does so must not call this library for the same space.
  void (*flush)(void *context, const struct palimpsest_paging_flush *request);
  // Optional. Does the same on the calling CPU only, after a fault that found nothing to do; without it, `flush`
  // does.
  void (*flush_here)(void *context, const struct palimpsest_paging_flush *request);
  // Optional but on AArch64. Called after entries became valid: `dsb ishst; isb` on AArch64.
  void (*entries_made)(void *context);
  // Optional. Called while the CPU waits for the lock of a space: takes the interrupts that flush, if they are off.
  void (*relax)(void *context);
  // Counts one more reference to the page of `len` bytes at `page`.
  //
  // The four callbacks for pages are optional together. Without them pages have no counts: the first store to a
  // private page after a fork is PALIMPSEST_PAGING_NO_PAGE. Memory that you do not count, device registers for
  // example, you tell by its address, and do nothing.
  void (*page_retain)(void *context, uint64_t page, uint64_t len);
  // Counts one reference less; no CPU reaches the page through it any more. The count falls with release order.
  void (*page_release)(void *context, uint64_t page, uint64_t len);
  // Returns 1 if there is one reference to the page, else 0; 0 for memory without counts. Reads with acquire order.
  int (*page_is_exclusive)(void *context, uint64_t page, uint64_t len);
  // Returns the physical address of a new page with the same bytes and one reference, aligned to `len`, or 0 if
  // there is no memory: then a large page is split, and the part copied.
  uint64_t (*page_copy)(void *context, uint64_t page, uint64_t len);
  // Optional. Turns the one reference to a page of 2 MiB or 1 GiB into one to each of its 512 parts. Nothing to do
  // if you count frames of 4 KiB.
  void (*page_split)(void *context, uint64_t page, uint64_t len);
};

// What a space has been charged with, and what calls for it have asked of the machine.
struct palimpsest_paging_stats {
  // `sizeof(struct palimpsest_paging_stats)`, set by the caller.
  size_t size;
  // Its tables. One that several spaces share counts for the space that made it, until it has no more use for it.
  int64_t tables;
  // Pages of 4 KiB that its own tables map.
  int64_t pages;
  // Tables that calls for it have allocated: those of forks count for the parent.
  uint64_t tables_allocated;
  // Tables that calls for it have freed.
  uint64_t tables_freed;
  // Calls of `flush` and `flush_here`.
  uint64_t flushes;
};

// A page as a space maps it.
struct palimpsest_paging_mapping {
  // `sizeof(struct palimpsest_paging_mapping)`, set by the caller.
  size_t size;
  // The page's first virtual address.
  uint64_t start;
  // Its length.
  uint64_t len;
  // Its first physical address.
  uint64_t physical;
  // As for palimpsest_paging_map. They include the right to write while stores fault since the page must be copied.
  uint32_t attributes;
  // PALIMPSEST_PAGING_ACCESSED, PALIMPSEST_PAGING_DIRTY.
  uint32_t marks;
};

// How a fault was resolved.
struct palimpsest_paging_resolution {
  // `sizeof(struct palimpsest_paging_resolution)`, set by the caller.
  size_t size;
  // Shared tables that were copied.
  uint32_t tables_copied;
  // 1 if the page was copied.
  uint32_t page_copied;
  // 1 if the page had become this space's own, and is written in place from now on.
  uint32_t page_reused;
  // Zero.
  uint32_t reserved;
};

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Returns what a result means, in words. `result` is an enum palimpsest_paging_result; other numbers have a text too.
// Never null.
const char *palimpsest_paging_message(uint32_t result);

// Returns the version of this interface: major, minor and patch, one byte each, from bit 16 down. Programs compiled
// against the same major version (and, while that is 0, the same minor one) work with this library.
uint32_t palimpsest_paging_version(void);

// Makes an empty space in `space`, whose memory must be zero. `format` is PALIMPSEST_PAGING_X86_64 and so on, and
// `share` PALIMPSEST_PAGING_SHARE_NONE, _LAST or a higher level. `id` is what flushes tell of it: any number but
// UINT64_MAX that no other space has at the same time. Allocates one table, the root.
//
// # Safety
//
// 1. `space` is null, or points to a structure that nobody else uses, and that stays where it is until it is dropped.
// 2. `machine` is null, or points to as many bytes as its `size` says; its callbacks keep their promises until the
//    last space that was made with it, or forked from one, is dropped.
enum palimpsest_paging_result palimpsest_paging_space_new(struct palimpsest_paging_space *space,
                                                          const struct palimpsest_paging_machine *machine,
                                                          uint32_t format,
                                                          uint64_t id,
                                                          uint32_t share);

// Makes a space in `child`, whose memory must be zero, that translates as `space` does now. The two share tables, as
// `share` of the first says, and all pages; the first store to a private page faults, and palimpsest_paging_fault
// copies it. The cost depends on the upper tables, and not on what is mapped. Flushes `space` before it returns. `id`
// is the child's, as for palimpsest_paging_space_new.
//
// # Safety
//
// 1. As for palimpsest_paging_space_new, contract 1, for `child`.
// 2. `space` is null, or points to a structure that is not dropped during the call.
enum palimpsest_paging_result palimpsest_paging_fork(const struct palimpsest_paging_space *space,
                                                     struct palimpsest_paging_space *child,
                                                     uint64_t id);

// Drops a space: gives back its tables and its references to pages, after a flush of all its addresses, and clears the
// first word of the memory, which may then hold another space. No CPU may run the space.
//
// # Safety
//
// 1. `space` is null, or points to a structure that nobody else uses during the call; no CPU has its root loaded.
enum palimpsest_paging_result palimpsest_paging_space_drop(struct palimpsest_paging_space *space);

// Writes to `root` the physical address of the root table, to be loaded into CR3, TTBRn or satp.
//
// # Safety
//
// 1. `space` is null, or points to a structure that is not dropped during the call.
// 2. `root` is null or can be written.
enum palimpsest_paging_result palimpsest_paging_root(const struct palimpsest_paging_space *space, uint64_t *root);

// Writes the space's counts to `stats`, whose `size` the caller has set. Other CPUs that use the space meanwhile may
// be counted in part.
//
// # Safety
//
// 1. `space` is null, or points to a structure that is not dropped during the call.
// 2. `stats` is null, or points to as many bytes as its `size` says, which can be written.
enum palimpsest_paging_result palimpsest_paging_space_stats(const struct palimpsest_paging_space *space,
                                                            struct palimpsest_paging_stats *stats);

// Maps `len` bytes from `start` on to the physical memory from `physical` on. `attributes` are PALIMPSEST_PAGING_READ,
// _WRITE, _EXECUTE, _KERNEL, _GLOBAL, _SHARED and _MEMORY_TYPE times a number, `sizes` PALIMPSEST_PAGING_4K and so on.
// Does not call `page_retain`: you hand over one reference to each page, which `page_release` gives back when it is
// unmapped. New pages count as used and written. Nothing may be mapped there.
//
// # Safety
//
// 1. `space` is null, or points to a structure that is not dropped during the call.
// 2. You have a reference to each page, or the memory is not counted; unless there is an error, the space then owns
//    it.
// 3. All programs that run in this space may use the memory as `attributes` say, as long as it is mapped. User mode
//    does not get the right to write to code, stacks and data of your own.
enum palimpsest_paging_result palimpsest_paging_map(const struct palimpsest_paging_space *space,
                                                    uint64_t start,
                                                    uint64_t physical,
                                                    uint64_t len,
                                                    uint32_t attributes,
                                                    uint32_t sizes);

// Unmaps everything from `start` to before `start + len`, and flushes it; then gives back the pages' references, and
// tables that have become empty. Splits large pages that lie only partly in the range; gaps do not matter. `reach` is
// PALIMPSEST_PAGING_USERS_ONLY or PALIMPSEST_PAGING_ALSO_KERNEL.
//
// # Safety
//
// 1. `space` is null, or points to a structure that is not dropped during the call.
// 2. With PALIMPSEST_PAGING_ALSO_KERNEL: if the caller runs in this space, it uses none of the kernel's pages in the
//    range, neither as code, stack or data.
enum palimpsest_paging_result palimpsest_paging_unmap(const struct palimpsest_paging_space *space,
                                                      uint64_t start,
                                                      uint64_t len,
                                                      uint32_t reach);

// Gives all pages from `start` to before `start + len` these rights (PALIMPSEST_PAGING_READ, _WRITE, _EXECUTE; 0 keeps
// the memory, and every access faults), and flushes them. Splits large pages that lie only partly in the range, copies
// shared tables, and skips gaps. `reach` is as for palimpsest_paging_unmap.
//
// # Safety
//
// 1. `space` is null, or points to a structure that is not dropped during the call.
// 2. With PALIMPSEST_PAGING_ALSO_KERNEL: if the caller runs in this space, it uses the kernel's pages in the range
//    only as the rights allow; on AArch64, during the call, it uses no large page that must be split.
enum palimpsest_paging_result palimpsest_paging_protect(const struct palimpsest_paging_space *space,
                                                        uint64_t start,
                                                        uint64_t len,
                                                        uint32_t rights,
                                                        uint32_t reach);

// Writes to `mapping`, whose `size` the caller has set, the page that contains `address`. PALIMPSEST_PAGING_NOT_MAPPED
// if there is none, or the address is not canonical.
//
// # Safety
//
// 1. `space` is null, or points to a structure that is not dropped during the call.
// 2. `mapping` is null, or points to as many bytes as its `size` says, which can be written.
enum palimpsest_paging_result palimpsest_paging_query(const struct palimpsest_paging_space *space,
                                                      uint64_t address,
                                                      struct palimpsest_paging_mapping *mapping);

// Resolves a page fault at `address`: copies what is shared and must be written, sets the marks that the CPU does not
// set, and flushes what is necessary. `access` is one of PALIMPSEST_PAGING_READ, _WRITE and _EXECUTE, and
// PALIMPSEST_PAGING_KERNEL if the kernel has made it. After PALIMPSEST_PAGING_OK the access can be repeated;
// PALIMPSEST_PAGING_NOT_MAPPED and PALIMPSEST_PAGING_DENIED are yours to handle. `resolution`, whose `size` the caller
// has set, may be null.
//
// # Safety
//
// 1. `space` is null, or points to a structure that is not dropped during the call.
// 2. `resolution` is null, or points to as many bytes as its `size` says, which can be written.
enum palimpsest_paging_result palimpsest_paging_fault(const struct palimpsest_paging_space *space,
                                                      uint64_t address,
                                                      uint32_t access,
                                                      struct palimpsest_paging_resolution *resolution);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* PALIMPSEST_PAGING_H */
