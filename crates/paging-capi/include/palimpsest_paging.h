// Palimpsest's page tables for kernels, hypervisors and VMMs in C and C++, without a C library. A fork shares tables
// until one side changes them. Made from the Rust sources by cbindgen; do not edit.
//
// Link libpalimpsest_paging_capi.a. It calls the callbacks of struct palimpsest_paging_machine. Built for a target
// without an operating system, it also calls `void palimpsest_paging_panic(const char *message, size_t len)`, which you
// define, and which must not return: when one of your callbacks has broken its promise, or the library has a defect.
// The message does not end with a zero.
//
// Functions return an enum palimpsest_paging_result. After an error, the tables translate as before. Several CPUs may
// call functions for one space at a time, except for palimpsest_paging_space_new and palimpsest_paging_space_drop,
// which need the space alone. Before a function returns, it has flushed, and given back memory. Callbacks run on the
// CPU that called; they must not call functions for the same space, throw, or leave by longjmp.


#ifndef PALIMPSEST_PAGING_H
#define PALIMPSEST_PAGING_H

#include <stddef.h>
#include <stdint.h>

// The version of this header. palimpsest_paging_version() tells the library's.
#define PALIMPSEST_PAGING_VERSION_MAJOR 0
#define PALIMPSEST_PAGING_VERSION_MINOR 1
#define PALIMPSEST_PAGING_VERSION_PATCH 0
// As palimpsest_paging_version() returns it.
#define PALIMPSEST_PAGING_VERSION 0x000100u

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

// Forks share the tables of 4 KiB pages. Each number higher also shares the tables of one more level, up to the level
// below the root: then forks cost less, and the first store to each region costs more.
#define PALIMPSEST_PAGING_SHARE_LAST 1

// Loads.
#define PALIMPSEST_PAGING_READ 1

// Stores.
#define PALIMPSEST_PAGING_WRITE 2

// Instruction fetches.
#define PALIMPSEST_PAGING_EXECUTE 4

// For a page: only the kernel may use it. For an access: the kernel makes it.
#define PALIMPSEST_PAGING_KERNEL 8

// The translation is the same in all spaces, and survives a switch. Only with PALIMPSEST_PAGING_SHARED.
#define PALIMPSEST_PAGING_GLOBAL 16

// After a fork, both spaces store to the same page. Without this, the first store gives a space its own copy.
#define PALIMPSEST_PAGING_SHARED 32

// This times a number from 0 to 255 gives the memory type: an index into the CPU's own table (PAT, MAIR_EL1), or PBMT.
#define PALIMPSEST_PAGING_MEMORY_TYPE 256

// Pages of 4 KiB.
#define PALIMPSEST_PAGING_4K 0

// Pages of up to 2 MiB: at each address the largest that fits and is aligned in both virtual and physical memory.
#define PALIMPSEST_PAGING_UP_TO_2M 1

// Pages of up to 1 GiB, chosen in the same way.
#define PALIMPSEST_PAGING_UP_TO_1G 2

// Pages of 2 MiB, or an error.
#define PALIMPSEST_PAGING_ONLY_2M 3

// Pages of 1 GiB, or an error.
#define PALIMPSEST_PAGING_ONLY_1G 4

// Changes user mode's pages; a range that has a page of the kernel is refused.
#define PALIMPSEST_PAGING_USERS_ONLY 0

// Also changes pages of the kernel. The caller must not use those that it takes away or restricts: not as code, stack
// or data.
#define PALIMPSEST_PAGING_ALSO_KERNEL 1

// The page was used since its mark was last cleared.
#define PALIMPSEST_PAGING_ACCESSED 1

// The page was written since its mark was last cleared.
#define PALIMPSEST_PAGING_DIRTY 2

// The page stays as it is.
#define PALIMPSEST_PAGING_KEEP 0

// The page stays as it is, and so do all behind it.
#define PALIMPSEST_PAGING_STOP 8

// The page is unmapped, and its reference given back.
#define PALIMPSEST_PAGING_TAKE 16

// The page gets the rights that are added to this: PALIMPSEST_PAGING_READ, _WRITE and _EXECUTE.
#define PALIMPSEST_PAGING_PROTECT 32

// The result of a call.
enum palimpsest_paging_result {
  // Done.
  PALIMPSEST_PAGING_OK = 0,
  // A pointer is null or not aligned, a callback is missing, a `size` is wrong, or an argument has no such value.
  PALIMPSEST_PAGING_INVALID = 1,
  // The space was not made, was dropped, or was copied to another address.
  PALIMPSEST_PAGING_STALE = 2,
  // The memory for a space is not zero: it holds a space, or was never cleared.
  PALIMPSEST_PAGING_IN_USE = 3,
  // There is no memory for tables.
  PALIMPSEST_PAGING_NO_MEMORY = 4,
  // A page must be copied, and there is no memory for the copy.
  PALIMPSEST_PAGING_NO_PAGE = 5,
  // The range of virtual addresses is empty, not of whole pages, not canonical, includes the very last page, or
  // overlaps the range that pages would move to.
  PALIMPSEST_PAGING_RANGE = 6,
  // The physical address is no multiple of 4096, or beyond what the machine or the format has.
  PALIMPSEST_PAGING_PHYSICAL = 7,
  // An address or the length is no multiple of the one page size that was allowed, or a large page would move to an
  // address that is no multiple of its size.
  PALIMPSEST_PAGING_ALIGNMENT = 8,
  // Entries cannot express the attributes: the right to read is missing, there is no such memory type, or the pages
  // are global and private.
  PALIMPSEST_PAGING_ATTRIBUTES = 9,
  // Something is mapped there; unmap it first.
  PALIMPSEST_PAGING_MAPPED = 10,
  // Nothing is mapped there.
  PALIMPSEST_PAGING_NOT_MAPPED = 11,
  // The page does not allow this access.
  PALIMPSEST_PAGING_DENIED = 12,
  // A page there is the kernel's, and the caller may be running on it; `PALIMPSEST_PAGING_ALSO_KERNEL` changes it.
  PALIMPSEST_PAGING_KERNELS = 13,
};

// An address space, in memory of yours: clear it before palimpsest_paging_space_new, and do not move it until
// palimpsest_paging_space_drop, which clears its first word. A space at another address than that where it was made is
// PALIMPSEST_PAGING_STALE.
struct palimpsest_paging_space {
  // Only for the library.
  uint64_t private_words[80];
};

// The library's own data about a table. You keep one for each frame that can be a table, and need not clear it.
struct palimpsest_paging_meta {
  // Only for the library.
  uint64_t private_words[8];
};

// Virtual addresses from `start` to before `end`: whole pages.
struct palimpsest_paging_range {
  // The first address.
  uint64_t start;
  // The address behind the last.
  uint64_t end;
};

// Translations that must leave the TLBs of every CPU that runs a space.
struct palimpsest_paging_flush {
  // The space's id.
  uint64_t space;
  // The ranges of addresses, which may overlap; null for all addresses.
  const struct palimpsest_paging_range *ranges;
  // The number of ranges; 0 for all addresses.
  size_t count;
  // 1 if entries that lead to tables have changed; 0 if only entries of pages have. With 0, AArch64 may use `tlbi
  // vale1is`, and RISC-V `sfence.vma` with an address.
  uint32_t tables;
  // Zero.
  uint32_t reserved;
};

// What a space needs from your kernel. Making a space copies this structure, which you may then free, but not what
// `context` points to. Optional callbacks may be null.
//
// The library calls callbacks on the CPUs that call it, also while it holds the lock of a space.
struct palimpsest_paging_machine {
  // `sizeof(struct palimpsest_paging_machine)`.
  size_t size;
  // Passed to each callback.
  void *context;
  // The virtual address of physical address 0, modulo 2^64. There, CPUs that call this library can read and write
  // all tables. A multiple of 4096.
  uint64_t physical_offset;
  // The first physical address that the CPUs do not have (x86-64: 2 to the power of CPUID 80000008H EAX, bits 7 to
  // 0); 0 if they have all that the format's entries can hold.
  uint64_t physical_end;
  // Returns the physical address of 4096 bytes that nobody else uses, or 0 if there are none. They need not be zero.
  // Any function may call this.
  uint64_t (*allocate_table)(void *context);
  // Takes back a table from `allocate_table`. No CPU can reach it as a table any more.
  void (*free_table)(void *context, uint64_t table);
  // Returns the library's data about a table: always the same while the table is allocated, and different for each.
  struct palimpsest_paging_meta *(*meta)(void *context, uint64_t table);
  // Optional. Returns about how many tables could be allocated now. A call that needs many more then fails before it
  // takes any.
  uint64_t (*free_tables)(void *context);
  // Removes translations from the TLBs of all CPUs that run the space, including the calling one, and returns when
  // none of them holds one. An interrupt handler that does this must not call the library for the same space.
  void (*flush)(void *context, const struct palimpsest_paging_flush *request);
  // Optional. Like `flush`, but on the calling CPU only: called after a fault that found nothing to do. If this is
  // null, `flush` is called.
  void (*flush_here)(void *context, const struct palimpsest_paging_flush *request);
  // Optional, except on AArch64. Called after entries have become valid: runs `dsb ishst; isb` on AArch64.
  void (*entries_made)(void *context);
  // Optional. Called while the CPU waits for the lock of a space: if interrupts are off, it serves those that flush.
  void (*relax)(void *context);
  // Counts one more reference to the page of `len` bytes at `page`.
  //
  // Give all four callbacks for pages (this one to `page_copy`), or none. Without them, pages are not counted, and
  // the first store to a private page after a fork is PALIMPSEST_PAGING_NO_PAGE, as is a fork with private data of
  // the kernel. Callbacks recognise memory that you do not count, like device registers, by its address, and do
  // nothing.
  void (*page_retain)(void *context, uint64_t page, uint64_t len);
  // Counts one reference less: no CPU reaches the page through it any more. Decrements the count with release order.
  void (*page_release)(void *context, uint64_t page, uint64_t len);
  // Returns 1 if there is exactly one reference to the page, else 0; always 0 for memory that you do not count.
  // Reads the count with acquire order.
  int (*page_is_exclusive)(void *context, uint64_t page, uint64_t len);
  // Returns the physical address of a new page with the same bytes and one reference, aligned to `len`, or 0 if
  // there is no memory. After 0, a fault splits a large page and copies only the part that it needs; a fork, which
  // copies private pages of the kernel that can be written, fails (`PALIMPSEST_PAGING_NO_PAGE`). So map the memory
  // of devices as shared.
  uint64_t (*page_copy)(void *context, uint64_t page, uint64_t len);
  // Optional. Turns the one reference to a page of 2 MiB or 1 GiB into one to each of its 512 parts. Not needed if
  // you count frames of 4 KiB.
  void (*page_split)(void *context, uint64_t page, uint64_t len);
  // Optional. Turns the references to all 512 parts of a page of 2 MiB or 1 GiB into one to the whole, and returns
  // 1; or returns 0 if that is impossible. Not needed if you count frames of 4 KiB; without it, and with
  // `page_split`, palimpsest_paging_merge joins nothing.
  int (*page_merge)(void *context, uint64_t page, uint64_t len);
};

// What a space holds, and what calls for it have asked of the machine.
struct palimpsest_paging_stats {
  // `sizeof(struct palimpsest_paging_stats)`, set by the caller.
  size_t size;
  // How many tables it has. A table that several spaces share counts for the space that made it, until that space no
  // longer uses it.
  int64_t tables;
  // How many pages its own tables map, in units of 4 KiB.
  int64_t pages;
  // How many tables calls for it have allocated. Those of a fork count for the parent.
  uint64_t tables_allocated;
  // How many tables calls for it have freed.
  uint64_t tables_freed;
  // How many flushes calls for it have asked for.
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
  // As for palimpsest_paging_map. They have the right to write also while a store faults because the page must first
  // be copied.
  uint32_t attributes;
  // PALIMPSEST_PAGING_ACCESSED and PALIMPSEST_PAGING_DIRTY, or neither.
  uint32_t marks;
};

// How a fault was resolved.
struct palimpsest_paging_resolution {
  // `sizeof(struct palimpsest_paging_resolution)`, set by the caller.
  size_t size;
  // How many shared tables were copied.
  uint32_t tables_copied;
  // 1 if the page was copied.
  uint32_t page_copied;
  // 1 if only this space still had the page, which it now writes in place.
  uint32_t page_reused;
  // Zero.
  uint32_t reserved;
};

// Sees a page, and returns 0 to go on, another number to end the visit. Runs while the library holds the space's lock:
// it must not call functions for the same space.
typedef int (*palimpsest_paging_visit)(void *argument, const struct palimpsest_paging_mapping *mapping);

// Sees a page, and returns what is to become of it: PALIMPSEST_PAGING_KEEP, _TAKE or _STOP, or
// PALIMPSEST_PAGING_PROTECT plus rights. Runs while the library holds the space's lock: it must not call functions for
// the same space.
typedef uint32_t (*palimpsest_paging_decide)(void *argument, const struct palimpsest_paging_mapping *mapping);

// Gets the first address of a page, or, of a page that begins before the range asked for, the range's first address.
// Runs while the library holds the space's lock: it must not call functions for the same space.
typedef void (*palimpsest_paging_on_page)(void *argument, uint64_t address);

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Returns a text that says what `result` means, an enum palimpsest_paging_result; other numbers have a text, too.
// Never null.
const char *palimpsest_paging_message(uint32_t result);

// Returns the version of this interface: major, minor and patch, one byte each, from bit 16 down, as
// `PALIMPSEST_PAGING_VERSION` was when the kernel was compiled. Programs compiled against the same major version (and,
// while that is 0, the same minor one) work with this library.
uint32_t palimpsest_paging_version(void);

// Makes an empty space in `space`, whose memory must be zero. `format` is PALIMPSEST_PAGING_X86_64 and so on; `share`
// is PALIMPSEST_PAGING_SHARE_NONE, _LAST or a higher number. Flushes name the space by `id`: any number but UINT64_MAX
// that no other space has at the same time. Allocates one table, the root.
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

// Makes a space in `child`, whose memory must be zero, that translates as `space` does now. The two share all pages,
// and tables as the first space's `share` says. The first store to a private page faults, and palimpsest_paging_fault
// copies the page. The kernel's own private data is copied at once, since its stores must not fault
// (PALIMPSEST_PAGING_NO_PAGE if there is no memory for that). The cost depends on that and on the tables that are not
// shared, not on what is mapped. Flushes `space` before it returns. `id` is the child's, as for
// palimpsest_paging_space_new.
//
// # Safety
//
// 1. As for palimpsest_paging_space_new, contract 1, for `child`.
// 2. `space` is null, or points to a structure that is not dropped during the call.
enum palimpsest_paging_result palimpsest_paging_fork(const struct palimpsest_paging_space *space,
                                                     struct palimpsest_paging_space *child,
                                                     uint64_t id);

// Drops a space, which no CPU may run: flushes all its addresses, gives back its tables and its references to pages,
// and clears the memory's first word. The memory may then hold another space.
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

// Maps `len` bytes from `start` on to the physical memory from `physical` on. Nothing may be mapped there.
// `attributes` are PALIMPSEST_PAGING_READ, _WRITE, _EXECUTE, _KERNEL, _GLOBAL, _SHARED and _MEMORY_TYPE times a
// number; `sizes` is PALIMPSEST_PAGING_4K, _UP_TO_2M and so on. Does not call `page_retain`: you hand over one
// reference to each page, which `page_release` takes back when the page is unmapped. New pages are marked as used and
// written.
//
// # Safety
//
// 1. `space` is null, or points to a structure that is not dropped during the call.
// 2. You have a reference to each page, or the memory is not counted. Unless there is an error, the space then owns
//    the reference.
// 3. All programs that run in this space may use the memory as `attributes` say, as long as it is mapped. User mode
//    gets no right to write to code, stacks and data of your own.
enum palimpsest_paging_result palimpsest_paging_map(const struct palimpsest_paging_space *space,
                                                    uint64_t start,
                                                    uint64_t physical,
                                                    uint64_t len,
                                                    uint32_t attributes,
                                                    uint32_t sizes);

// Unmaps everything from `start` to before `start + len`, and flushes it; then gives back the references to pages, and
// tables that have become empty. Splits large pages that lie only partly in the range; skips gaps. `reach` is
// PALIMPSEST_PAGING_USERS_ONLY or PALIMPSEST_PAGING_ALSO_KERNEL.
//
// # Safety
//
// 1. `space` is null, or points to a structure that is not dropped during the call.
// 2. With PALIMPSEST_PAGING_ALSO_KERNEL: if the caller runs in this space, it uses none of the kernel's pages in the
//    range, not as code, stack or data.
enum palimpsest_paging_result palimpsest_paging_unmap(const struct palimpsest_paging_space *space,
                                                      uint64_t start,
                                                      uint64_t len,
                                                      uint32_t reach);

// Gives all pages from `start` to before `start + len` these rights (PALIMPSEST_PAGING_READ, _WRITE, _EXECUTE), and
// flushes them. With 0, the pages stay mapped and every access faults. Splits large pages that lie only partly in the
// range, copies shared tables, and skips gaps. `reach` is as for palimpsest_paging_unmap.
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

// Finds the page that contains `address`, and describes it in `mapping`, whose `size` the caller has set.
// PALIMPSEST_PAGING_NOT_MAPPED if there is none, or the address is not canonical.
//
// # Safety
//
// 1. `space` is null, or points to a structure that is not dropped during the call.
// 2. `mapping` is null, or points to as many bytes as its `size` says, which can be written.
enum palimpsest_paging_result palimpsest_paging_query(const struct palimpsest_paging_space *space,
                                                      uint64_t address,
                                                      struct palimpsest_paging_mapping *mapping);

// Resolves a page fault at `address`: copies what is shared and must be written, sets the marks that the CPU does not
// set, and flushes what is necessary. `access` is PALIMPSEST_PAGING_READ, _WRITE or _EXECUTE, with
// PALIMPSEST_PAGING_KERNEL if the kernel made the access. After PALIMPSEST_PAGING_OK, repeat the access.
// PALIMPSEST_PAGING_NOT_MAPPED and PALIMPSEST_PAGING_DENIED are yours to handle. `resolution` may be null; else the
// caller has set its `size`.
//
// # Safety
//
// 1. `space` is null, or points to a structure that is not dropped during the call.
// 2. `resolution` is null, or points to as many bytes as its `size` says, which can be written.
enum palimpsest_paging_result palimpsest_paging_fault(const struct palimpsest_paging_space *space,
                                                      uint64_t address,
                                                      uint32_t access,
                                                      struct palimpsest_paging_resolution *resolution);

// Shows `visit` every page that shares an address with `start` to before `start + len`, by ascending address.
//
// # Safety
//
// 1. `space` is null, or points to a structure that is not dropped during the call.
// 2. `visit` is null or such a function, and may be called with `argument`.
enum palimpsest_paging_result palimpsest_paging_walk(const struct palimpsest_paging_space *space,
                                                     uint64_t start,
                                                     uint64_t len,
                                                     palimpsest_paging_visit visit,
                                                     void *argument);

// Asks `decide` about every page from `start` to before `start + len`, by ascending address, does what it says, and
// flushes once at the end. Of a large page that lies only partly in the range, `decide` is first shown the whole:
// PALIMPSEST_PAGING_KEEP passes all of it; PALIMPSEST_PAGING_TAKE and _PROTECT split off the largest page that lies in
// the range, from its first address in the range on, change that, and `decide` is asked about what follows. `reach` is
// as for palimpsest_paging_unmap.
//
// After an error, pages that were decided on before stay changed, and are flushed.
//
// # Safety
//
// 1. `space` is null, or points to a structure that is not dropped during the call.
// 2. `decide` is null or such a function, and may be called with `argument`.
// 3. With PALIMPSEST_PAGING_ALSO_KERNEL: if the caller runs in this space, it uses pages of the kernel that are taken
//    or restricted no longer: not as code, stack or data.
enum palimpsest_paging_result palimpsest_paging_edit(const struct palimpsest_paging_space *space,
                                                     uint64_t start,
                                                     uint64_t len,
                                                     palimpsest_paging_decide decide,
                                                     void *argument,
                                                     uint32_t reach);

// Maps `count` pages of 4 KiB, which need not be adjacent in physical memory, at the addresses from `start` on:
// `pages` are their physical addresses. Nothing may be mapped there. `attributes` are as for palimpsest_paging_map,
// and so are references: you hand over one to each page, unless there is an error; then none is mapped.
//
// # Safety
//
// 1. `space` is null, or points to a structure that is not dropped during the call.
// 2. `pages` is null, or points to `count` addresses.
// 3. Contracts 2 and 3 of palimpsest_paging_map, for each page.
enum palimpsest_paging_result palimpsest_paging_map_pages(const struct palimpsest_paging_space *space,
                                                          uint64_t start,
                                                          const uint64_t *pages,
                                                          uint64_t count,
                                                          uint32_t attributes);

// Writes to `count` how many pages from `start` to before `start + len` have a mark: PALIMPSEST_PAGING_ACCESSED or
// PALIMPSEST_PAGING_DIRTY. Copies no table.
//
// # Safety
//
// 1. `space` is null, or points to a structure that is not dropped during the call.
// 2. `count` is null or can be written.
enum palimpsest_paging_result palimpsest_paging_count_marked(const struct palimpsest_paging_space *space,
                                                             uint64_t start,
                                                             uint64_t len,
                                                             uint32_t mark,
                                                             uint64_t *count);

// Clears a mark of all pages from `start` to before `start + len`, and flushes those that had it. `on_page`, which may
// be null, is called for each of them; a CPU may have set the mark again when this function returns. Copies shared
// tables first, since their marks also belong to the other spaces. On AArch64 and RISC-V, where a page without its
// marks faults, it refuses pages of the kernel (PALIMPSEST_PAGING_KERNELS).
//
// # Safety
//
// 1. `space` is null, or points to a structure that is not dropped during the call.
// 2. `on_page` is null or such a function, and may be called with `argument`.
enum palimpsest_paging_result palimpsest_paging_take_marks(const struct palimpsest_paging_space *space,
                                                           uint64_t start,
                                                           uint64_t len,
                                                           uint32_t mark,
                                                           palimpsest_paging_on_page on_page,
                                                           void *argument);

// Moves everything that is mapped from `from` to before `from + len` to the addresses from `to` on, where nothing may
// be mapped, and flushes the old addresses. Moves whole tables where it can, also shared ones, so that it costs
// little. PALIMPSEST_PAGING_RANGE if the two overlap, PALIMPSEST_PAGING_ALIGNMENT if a large page would no longer be
// aligned: split it first. `reach` is as for palimpsest_paging_unmap.
//
// # Safety
//
// 1. `space` is null, or points to a structure that is not dropped during the call.
// 2. With PALIMPSEST_PAGING_ALSO_KERNEL: if the caller runs in this space, it uses none of the kernel's pages in the
//    range, not as code, stack or data.
enum palimpsest_paging_result palimpsest_paging_move(const struct palimpsest_paging_space *space,
                                                     uint64_t from,
                                                     uint64_t len,
                                                     uint64_t to,
                                                     uint32_t reach);

// Turns the pages from `start` to before `start + len` into pages of 4 KiB, with the same translation. Pages of user
// mode are unmapped for a moment: CPUs that fault meanwhile wait in palimpsest_paging_fault. On AArch64 it refuses
// pages of the kernel (PALIMPSEST_PAGING_KERNELS).
//
// # Safety
//
// 1. `space` is null, or points to a structure that is not dropped during the call.
enum palimpsest_paging_result palimpsest_paging_split(const struct palimpsest_paging_space *space,
                                                      uint64_t start,
                                                      uint64_t len);

// Joins the 512 pages of the next smaller size from `address` on to one page: of 2 MiB with PALIMPSEST_PAGING_ONLY_2M,
// of 1 GiB with PALIMPSEST_PAGING_ONLY_1G. Writes 1 to `merged` if that was done, and 0 if it cannot be: they are not
// adjacent in physical memory or not aligned, have different attributes, belong to the kernel, or are shared with a
// fork.
//
// # Safety
//
// 1. `space` is null, or points to a structure that is not dropped during the call.
// 2. `merged` is null or can be written.
enum palimpsest_paging_result palimpsest_paging_merge(const struct palimpsest_paging_space *space,
                                                      uint64_t address,
                                                      uint32_t size,
                                                      uint32_t *merged);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* PALIMPSEST_PAGING_H */
