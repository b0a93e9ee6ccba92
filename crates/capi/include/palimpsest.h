// Palimpsest for C and C++: memory that is rewritten while it is in use. Made from the Rust sources by cbindgen; do not
// edit.
//
// Link libpalimpsest.so, or libpalimpsest.a with -lpthread -ldl -lm (`pkg-config --libs palimpsest`).
//
// Functions that follow the C library's (palimpsest_arena_..., palimpsest_madvise, palimpsest_mremap,
// palimpsest_mprotect, palimpsest_pkey_mprotect, palimpsest_mlock, palimpsest_mlockall) return null or -1, and set
// errno. All others that can fail return an enum palimpsest_result, and keep a message for each thread
// (palimpsest_error_message). A null or misaligned pointer for a result is an error, and
// so is a defect of the library (PALIMPSEST_PANIC, or ENOTRECOVERABLE). What the library hands out is named by handles,
// numbers in a structure: a handle that was released, or never handed out, is an error and not a pointer. Any thread
// may call any function; those that may be called in signal handlers say so. A child of fork() goes on with the handles
// that it inherits.


#ifndef PALIMPSEST_H
#define PALIMPSEST_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "palimpsest_key.h"

// The version of this header. palimpsest_version() tells the library's.
#define PALIMPSEST_VERSION_MAJOR 0
#define PALIMPSEST_VERSION_MINOR 1
#define PALIMPSEST_VERSION_PATCH 0
// As palimpsest_version() returns it.
#define PALIMPSEST_VERSION 0x000100u

// The best memory that works here.
#define PALIMPSEST_BACKING_BEST 0

// A memory file in huge pages, put together by the kernel.
#define PALIMPSEST_BACKING_COLLAPSED 1

// A memory file in huge pages of the reserved pool.
#define PALIMPSEST_BACKING_HUGETLB 2

// A memory file in base pages.
#define PALIMPSEST_BACKING_SMALL 3

// Private memory, written through `/proc/self/mem`: debuggers can set breakpoints there.
#define PALIMPSEST_BACKING_PRIVATE 4

// A second view of the memory that can always be written.
#define PALIMPSEST_WRITE_VIEW_STANDING 0

// A second view that can be written during copies only.
#define PALIMPSEST_WRITE_VIEW_DURING_COPIES 1

// No second view: for `PALIMPSEST_BACKING_PRIVATE`.
#define PALIMPSEST_WRITE_VIEW_NONE 2

// Forked children run the programs that they inherit.
#define PALIMPSEST_FORK_INHERIT 0

// Forked children have none of the programs.
#define PALIMPSEST_FORK_OMIT 1

// `/tmp/perf-PID.map`, for perf.
#define PALIMPSEST_PERF_MAP 1

// `jit-PID.dump`, for `perf inject`, with code.
#define PALIMPSEST_JIT_DUMP 2

// GDB's interface for compilers.
#define PALIMPSEST_GDB 4

// The unwinder of this process, for programs with `.eh_frame` (`palimpsest_staged_set_eh_frame`), which it trusts.
#define PALIMPSEST_UNWIND 8

// The part that runs.
#define PALIMPSEST_CODE 0

// The part that the code reads.
#define PALIMPSEST_READ_ONLY 1

// The part that the code reads and writes.
#define PALIMPSEST_READ_WRITE 2

// A runtime manages its memory by system calls of its own (Go, musl), and never gives memory back by discarding it.
#define PALIMPSEST_RAW_ALLOCATOR 1

// Whatever an io_uring holds on to is outside the memory that will be frozen.
#define PALIMPSEST_IO_URING 2

// All future mappings will be locked; freezing gains nothing, and memory is held twice.
#define PALIMPSEST_LOCKED_MEMORY 4

// No request of Linux AIO is under way, or its buffers are outside the memory that will be frozen.
#define PALIMPSEST_LINUX_AIO 8

// It is frozen, or would be.
#define PALIMPSEST_SKIP_NOT 0

// Fewer populated bytes than `least` in `palimpsest_freeze_options`.
#define PALIMPSEST_SKIP_SMALL 1

// A private mapping of a file with pages of its own, such as a library's data.
#define PALIMPSEST_SKIP_FILE 2

// A stack.
#define PALIMPSEST_SKIP_STACK 3

// Made by the kernel.
#define PALIMPSEST_SKIP_KERNEL 4

// Shared with other processes.
#define PALIMPSEST_SKIP_SHARED 5

// Memory of a device.
#define PALIMPSEST_SKIP_DEVICE 6

// Pages of hugetlbfs.
#define PALIMPSEST_SKIP_HUGETLB 7

// Not given to children (`MADV_DONTFORK`), so that it costs a fork nothing.
#define PALIMPSEST_SKIP_NOT_FORKED 8

// Children get zeros (`MADV_WIPEONFORK`).
#define PALIMPSEST_SKIP_WIPED_ON_FORK 9

// Locked in memory.
#define PALIMPSEST_SKIP_LOCKED 10

// Watched by a userfaultfd.
#define PALIMPSEST_SKIP_USERFAULT 11

// It has guard regions or other pages that cannot be read.
#define PALIMPSEST_SKIP_GUARDED 12

// Sealed against changes (`mseal`).
#define PALIMPSEST_SKIP_SEALED 13

// Its pages carry tags (AArch64 memory tagging).
#define PALIMPSEST_SKIP_TAGGED 14

// The kernel may drop its pages.
#define PALIMPSEST_SKIP_DROPPABLE 15

// It has a memory protection key.
#define PALIMPSEST_SKIP_PROTECTION_KEY 16

// It has a policy for NUMA nodes.
#define PALIMPSEST_SKIP_MEMORY_POLICY 17

// Executable.
#define PALIMPSEST_SKIP_EXECUTABLE 18

// Without the right to read.
#define PALIMPSEST_SKIP_INACCESSIBLE 19

// The calling thread's own: its stack, its thread-local storage, and the library's tables.
#define PALIMPSEST_SKIP_IN_USE 20

// Written to after each of the last freezes, so that freezing it does not pay for now.
#define PALIMPSEST_SKIP_HOT 21

// Not expected to pay within `pays_within` forks.
#define PALIMPSEST_SKIP_UNPROFITABLE 22

// Another reason, which this version of the header does not name.
#define PALIMPSEST_SKIP_OTHER 255

// There was no freeze in slices.
#define PALIMPSEST_STAGE_NONE 0

// It is under way.
#define PALIMPSEST_STAGE_UNDER_WAY 1

// It is done.
#define PALIMPSEST_STAGE_DONE 2

// It ended early; what is frozen is right all the same.
#define PALIMPSEST_STAGE_ENDED 3

// What became of a call.
enum palimpsest_result {
  // Done.
  PALIMPSEST_OK = 0,
  // An argument is null, or has a value that the function does not accept.
  PALIMPSEST_INVALID = 1,
  // The handle names nothing: it was released, or was never handed out.
  PALIMPSEST_STALE = 2,
  // There is no room left: memory, addresses, descriptors or mappings.
  PALIMPSEST_NO_ROOM = 3,
  // It would not be safe here, or the program asked to refuse it.
  PALIMPSEST_REFUSED = 4,
  // The kernel refused.
  PALIMPSEST_SYSTEM = 5,
  // Another thread is using it.
  PALIMPSEST_BUSY = 6,
  // Nothing is there.
  PALIMPSEST_NOT_FOUND = 7,
  // The bytes to be changed are not those that the caller named.
  PALIMPSEST_CHANGED = 8,
  // What the handle names belongs to the process from which this one was forked.
  PALIMPSEST_FORKED = 9,
  // A defect of Palimpsest: it panicked. What the call was doing may be half done.
  PALIMPSEST_PANIC = 10,
  // Code is changed, but not all of it, or some core may still run the old code for a while.
  PALIMPSEST_PARTLY = 11,
};

// How to open packs. Zeros are the defaults; `size` is the size of this structure, and tells which fields there are.
struct palimpsest_packs_options {
  // Bytes of this structure, set by the caller.
  size_t size;
  // Bytes of address space for all packs; 0 for the default.
  size_t region_len;
  // An address that the packs should be near, such as that of functions which programs call; 0 for anywhere.
  size_t near;
  // Bytes of released programs after which their memory is reclaimed; 0 for the default, `SIZE_MAX` for only by
  // `palimpsest_packs_reclaim`.
  size_t reclaim_bytes;
  // `PALIMPSEST_BACKING_BEST`, or another one that is taken, or refused.
  int backing;
  // `PALIMPSEST_WRITE_VIEW_STANDING`, `_DURING_COPIES` or `_NONE`.
  int write_view;
  // `PALIMPSEST_FORK_INHERIT` or `_OMIT`.
  int fork;
  // A sum of `PALIMPSEST_PERF_MAP`, `_JIT_DUMP`, `_GDB` and `_UNWIND`: who learns of programs.
  uint32_t observers;
};

// Open packs. 0 names none, as with every handle.
struct palimpsest_packs {
  // Not to be computed with.
  uint64_t handle;
};

// Counters. `size` is the size of this structure, set by the caller.
struct palimpsest_packs_stats {
  // Bytes of this structure, set by the caller.
  size_t size;
  // As in `palimpsest_packs_options`, never 0.
  int backing;
  // As in `palimpsest_packs_options`.
  int write_view;
  // Packs, of 2 MiB each.
  size_t packs;
  // Programs and data, in place or released and not yet reclaimed.
  size_t programs;
  // Bytes of packs that programs take.
  size_t used_bytes;
  // Bytes of packs.
  size_t reserved_bytes;
  // Bytes of released programs not reclaimed yet.
  size_t retired_bytes;
  // Bytes of the longest run of free memory in one pack.
  size_t largest_free_run;
  // Mappings of this process used by the packs.
  size_t mappings;
  // Programs and data ever put in place.
  uint64_t loads;
  // Programs and data ever reclaimed.
  uint64_t frees;
  // Core synchronisations.
  uint64_t core_syncs;
  // How often an observer failed.
  uint64_t observer_errors;
  // Threads of this process that are pinned (`palimpsest_pin`).
  size_t pinned_threads;
};

// What was found at an address.
struct palimpsest_found {
  // Bytes of this structure, set by the caller.
  size_t size;
  // Where the program starts.
  size_t start;
  // Its length in bytes.
  size_t len;
  // Where to go on if the instruction at the address faults; 0 if the program does not say.
  size_t landing;
  // The program's name, cut to fit, with a zero at its end.
  char name[64];
};

// Code that may run, until it is released.
struct palimpsest_program {
  // Not to be computed with.
  uint64_t handle;
};

// A place in the packs, and an image of what it will hold.
struct palimpsest_staged {
  // Not to be computed with.
  uint64_t handle;
};

// Where a program goes on when one of its instructions faults: both in bytes from its start.
struct palimpsest_fault {
  // The instruction.
  uint32_t offset;
  // Where to go on.
  uint32_t landing;
};

// A place for data, and an image of what it will hold.
struct palimpsest_staged_data {
  // Not to be computed with.
  uint64_t handle;
};

// Data that is in place, until it is released.
struct palimpsest_data {
  // Not to be computed with.
  uint64_t handle;
};

// The length of a part.
struct palimpsest_alloc_part {
  // Bytes; 0 for no such part.
  size_t len;
  // A power of two, at most 4096.
  size_t align;
};

// A request for an allocation. `size` is that of this structure, set by the caller.
struct palimpsest_alloc_request {
  // Bytes of this structure, set by the caller.
  size_t size;
  // The code.
  struct palimpsest_alloc_part code;
  // Data that the code reads.
  struct palimpsest_alloc_part read_only;
  // Data that the code reads and writes.
  struct palimpsest_alloc_part read_write;
  // 0: you write to an image on the heap, which `palimpsest_alloc_finalize` copies into place. 1: you write in
  // place, through the packs' second view (`write_view` 0); whoever jumps there at once runs what is written.
  int in_place;
  // Must be 0.
  int reserved;
};

// Places for code and data, and where their bytes are written, until the allocation is finalized or dropped.
struct palimpsest_alloc {
  // A number that only this library interprets.
  uint64_t handle;
};

// Where a part will be, and where its bytes are written meanwhile. Zeros if there is no such part.
struct palimpsest_alloc_place {
  // The final address.
  size_t address;
  // Bytes.
  size_t len;
  // `len` bytes to be written until the allocation is finalized or dropped; at first traps (code) or zeros. They do
  // not move when the part shrinks, but the bytes behind its new length are no longer the caller's. If they are in
  // place, children of `fork` must not use them.
  void *working;
};

// The places of an allocation. `size` is that of this structure, set by the caller.
struct palimpsest_alloc_places {
  // Bytes of this structure, set by the caller.
  size_t size;
  // The code.
  struct palimpsest_alloc_place code;
  // The data that the code reads.
  struct palimpsest_alloc_place read_only;
  // The data that the code reads and writes.
  struct palimpsest_alloc_place read_write;
};

// A function inside the code of an allocation.
struct palimpsest_function {
  // Its name, with a zero at its end.
  const char *name;
  // Bytes from the code's first to the function's.
  size_t offset;
  // Bytes.
  size_t len;
};

// A range of addresses.
struct palimpsest_alloc_range {
  // The first address.
  size_t start;
  // Bytes.
  size_t len;
};

// The allocation at an address. `size` is that of this structure, set by the caller.
struct palimpsest_alloc_found {
  // Bytes of this structure, set by the caller.
  size_t size;
  // The part that contains the address: `PALIMPSEST_CODE`, `_READ_ONLY` or `_READ_WRITE`.
  int part;
  // 0: in place. 1: released, and not yet reclaimed.
  int state;
  // The code. Zeros if there is no such part, here and below.
  struct palimpsest_alloc_range code;
  // The data that the code reads.
  struct palimpsest_alloc_range read_only;
  // The data that the code reads and writes.
  struct palimpsest_alloc_range read_write;
};

// A line of a source, which holds from its offset up to the next one's.
struct palimpsest_line {
  // The file, as its compiler named it, with a zero at its end. Null or empty if it has no name.
  const char *file;
  // Bytes from the program's first, or the code's, to the line's.
  uint32_t offset;
  // The line, from 1; 0 for code that comes from no line.
  uint32_t line;
  // The column, from 1; 0 if it is not known.
  uint32_t column;
  // Must be 0.
  uint32_t reserved;
};

// One instruction to be replaced by another of the same length.
struct palimpsest_site {
  // The program that the instruction is in; handle 0 for the text of the running program or of a library.
  struct palimpsest_program program;
  // Where the instruction begins.
  const void *address;
  // The present bytes.
  const void *old_code;
  // The new bytes.
  const void *new_code;
  // Bytes of each, 1 to 15.
  size_t len;
};

// What a batch did. `size` is the size of this structure, set by the caller.
struct palimpsest_applied {
  // Bytes of this structure, set by the caller.
  size_t size;
  // Sites that changed; the others were as wanted before.
  size_t sites;
  // Core synchronisations.
  uint64_t syncs;
  // How: 0: with one store each. 1: with detours. 2: while every other thread was held. 3: with traps.
  int mode;
  // 0.
  int reserved;
};

// How to freeze. Zeros are the defaults; `size` is the size of this structure, set by the caller.
struct palimpsest_freeze_options {
  // Bytes of this structure, set by the caller.
  size_t size;
  // Leaves alone mappings with fewer populated bytes; 0 for 16 pages.
  size_t least;
  // A sum of `PALIMPSEST_RAW_ALLOCATOR`, `_IO_URING`, `_LOCKED_MEMORY` and `_LINUX_AIO`: what the caller answers
  // for.
  uint32_t answers;
  // Freezes what is expected to pay within this many forks; 0 for all that can be frozen.
  uint32_t pays_within;
  // Not 0: holds other threads still; 0: refuses a process with several threads.
  int stop_threads;
  // Not 0: asks for huge pages.
  int collapse;
  // Not 0: does not time forks before and after.
  int no_measure;
  // Must be 0.
  int reserved;
  // Not 0: `palimpsest_freeze` only plans; `palimpsest_fork` and `palimpsest_freeze_slice` freeze, and hold the
  // process up for about as many nanoseconds at a time.
  uint64_t pause_ns;
  // Bytes of an extent, rounded up to a power of two of at least 2 MiB; 0 for a part of what is frozen.
  size_t extent;
  // Not 0: a freeze in slices first puts memory into huge pages where it is, and freezes only what cannot be put
  // there; with `pause_ns` and `pays_within`. Not together with `collapse`.
  int gather;
  // Not 0: a process that borrows this one's memory asks for huge pages between forks, so that no thread of this one
  // waits for them. See `palimpsest_dismiss_deputy`.
  int deputy;
};

// What a freeze did, or would do. `size` is the size of this structure, set by the caller.
struct palimpsest_freeze_report {
  // Bytes of this structure, set by the caller.
  size_t size;
  // Bytes that are frozen.
  size_t frozen;
  // Populated bytes that are not.
  size_t skipped;
  // Nanoseconds for which the process was held up, without measurements.
  uint64_t taken_ns;
  // Nanoseconds of the shortest fork before; 0 if not measured.
  uint64_t fork_before_ns;
  // Nanoseconds of the shortest fork afterwards; 0 if not measured.
  uint64_t fork_after_ns;
  // Forks after which it has paid; 0 if unknown or never.
  uint64_t pays_after;
  // 0: not measured. 1: forks are quicker. 2: they are not. 3: they were dearer, so that everything was thawed.
  int verdict;
  // Not 0: it ended early, for lack of room. What is frozen is right all the same.
  int is_stopped;
  // How many ranges `palimpsest_report_get_range` tells of.
  size_t ranges;
  // Bytes of an extent.
  size_t extent;
  // Extents made: sealed files.
  size_t extents;
  // Pieces of 2 MiB that became huge pages.
  size_t collapsed;
  // Bytes that were put into huge pages where they are (`gather`).
  size_t gathered;
  // The most memory held twice at one time, in bytes.
  size_t peak_extra;
  // Nanoseconds that it takes, once; 0 if unknown, as the next three.
  uint64_t once_ns;
  // Nanoseconds that each fork saves.
  uint64_t per_fork_ns;
  // Nanoseconds that freezing what would not pay would take (`PALIMPSEST_SKIP_UNPROFITABLE`).
  uint64_t left_once_ns;
  // Nanoseconds that each fork would save then.
  uint64_t left_per_fork_ns;
  // Of `once_ns` and `per_fork_ns`, 0: both are expected. 1: the first is measured. 2: both are.
  int basis;
  // 0.
  int reserved;
};

// What this process knows of its frozen memory. `size` is the size of this structure, set by the caller.
struct palimpsest_fork_status {
  // Bytes of this structure, set by the caller.
  size_t size;
  // Bytes that are frozen.
  size_t frozen;
  // Sealed files that are mapped.
  size_t extents;
  // Pieces of up to 2 MiB that are written to all the time, and left alone for now.
  size_t hot_pieces;
  // Forks by `palimpsest_fork`; while nothing is frozen, only those that took unusually long or short. A child
  // begins at 0.
  uint64_t forks;
  // Repairs; a child begins at 0.
  uint64_t repairs;
  // CPU nanoseconds that forks took beyond `clean_ns` since the last freeze or repair.
  uint64_t debt_ns;
  // CPU nanoseconds of a fork when nothing was written since the last freeze or repair; 0 if there was none.
  uint64_t clean_ns;
  // The debt at which a repair follows, or a look at what it would take.
  uint64_t price_ns;
};

// Memory of which a report tells. `size` is the size of this structure, set by the caller.
struct palimpsest_report_range {
  // Bytes of this structure, set by the caller.
  size_t size;
  // The first address.
  size_t start;
  // Bytes of addresses.
  size_t len;
  // Populated bytes. Of frozen memory in a survey: those of the whole mapping that the range is part of.
  size_t bytes;
  // `PALIMPSEST_SKIP_NOT` if it is frozen, or would be; else why it is not: `PALIMPSEST_SKIP_SMALL` and the others.
  int skip;
  // Not 0: it is frozen, and had a name (`PR_SET_VMA_ANON_NAME`), which is lost.
  int lost_name;
};

// How far a freeze in slices has come. `size` is the size of this structure, set by the caller.
struct palimpsest_freeze_progress {
  // Bytes of this structure, set by the caller.
  size_t size;
  // Bytes that were populated when the freeze was planned, and will be frozen.
  size_t planned;
  // Bytes frozen so far.
  size_t frozen;
  // Bytes put into huge pages so far instead (`gather`).
  size_t gathered;
  // Slices so far.
  uint64_t slices;
  // Nanoseconds of the longest slice: how long the process was held up at most.
  uint64_t longest_ns;
  // Nanoseconds of all slices together.
  uint64_t taken_ns;
  // Nanoseconds of planning, before the first slice.
  uint64_t looked_ns;
  // `PALIMPSEST_STAGE_NONE`, `_UNDER_WAY`, `_DONE` or `_ENDED`.
  int stage;
  // 0.
  int reserved;
  // CPU nanoseconds of deputies (`deputy`), while the process went on.
  uint64_t beside_ns;
};

// Asked by `palimpsest_freeze_while` after each slice: not 0 if the program still has nothing to do.
typedef int (*palimpsest_is_idle)(void *argument);

// Addresses.
struct palimpsest_range {
  // The first.
  const void *start;
  // How many bytes.
  size_t len;
};

// What a snapshot holds, and how it is restored. Zeros are the defaults; `size` is the size of this structure, set by
// the caller.
struct palimpsest_snapshot_options {
  // Bytes of this structure, set by the caller.
  size_t size;
  // Ranges of whole pages in private writable mappings that stay where they are. Null for the whole process: all
  // private writable memory except the running stack, and where everything is mapped.
  const struct palimpsest_range *ranges;
  // How many ranges.
  size_t range_count;
  // Memory to leave alone, in whole pages; may be null.
  const struct palimpsest_range *except;
  // How many of these.
  size_t except_count;
  // Bytes of written pages that are restored by copying and stay resident; 0 for 64 MiB, 1 for none.
  size_t resident;
  // When to search page tables for written pages. 0: if there was a page fault. 1: in each restore. 2: never; only
  // what was declared is restored. 3: in the first restore and every `sweep_every`th after it.
  int sweep;
  // See `sweep`.
  uint32_t sweep_every;
  // Not 0: does not compare mappings; the caller knows that none has changed.
  int trust_layout;
  // Not 0: allows other threads; the caller knows that they sleep whenever a snapshot is taken or restored.
  int others_sleep;
  // Not 0: closes descriptors opened since, and restores those closed since.
  int restore_descriptors;
  // Must be 0.
  int reserved;
};

// A state of memory that the thread that took it can restore any number of times.
struct palimpsest_snapshot {
  // Not to be computed with.
  uint64_t handle;
};

// What a restore did. `size` is the size of this structure, set by the caller.
struct palimpsest_restored {
  // Bytes of this structure, set by the caller.
  size_t size;
  // Pages restored.
  size_t pages;
  // How many of them were copied and stay resident; the others were dropped.
  size_t copied_pages;
  // Bytes of mappings made since, which are gone now.
  size_t unmapped;
  // Bytes of mappings removed or replaced since, which are back.
  size_t remade;
  // Bytes of mappings that have their rights back.
  size_t protected_bytes;
  // Descriptors opened since and closed now.
  size_t closed;
  // Descriptors closed or replaced since and open again.
  size_t reopened;
  // Descriptors closed or replaced since that cannot be restored.
  size_t lost;
  // Not 0: page tables were searched.
  int is_swept;
  // 0.
  int reserved;
};

// A target of `palimpsest_snapshot_run`.
typedef size_t (*palimpsest_target)(void *argument);

// A round of `palimpsest_snapshot_rounds`: its number from 0, the value with which the last one was abandoned, and
// what was restored before this one (null in the first).
typedef size_t (*palimpsest_body)(void *argument,
                                  uint64_t number,
                                  size_t value,
                                  const struct palimpsest_restored *restored);

// How much a snapshot holds, and what it leaves out. `size` is the size of this structure, set by the caller.
struct palimpsest_snapshot_extent {
  // Bytes of this structure, set by the caller.
  size_t size;
  // Bytes of addresses.
  size_t addresses;
  // How many of them had contents.
  size_t saved;
  // Ranges of writable memory that it does not hold (`palimpsest_snapshot_not_taken`).
  size_t not_taken;
};

// Memory that a snapshot does not hold. `size` is the size of this structure, set by the caller.
struct palimpsest_not_taken {
  // Bytes of this structure, set by the caller.
  size_t size;
  // The first address.
  size_t start;
  // How many bytes.
  size_t len;
  // Why, in words, with a zero at the end.
  char reason[64];
};

// What `palimpsest_arena_stats` fills in. New fields are added at the end; `size` tells which there are.
struct palimpsest_arena_stats {
  // Bytes of this structure, set by the caller.
  size_t size;
  // Allocated blocks.
  size_t blocks;
  // Their bytes.
  size_t bytes;
  // Bytes that the next freeze freezes without copying.
  size_t shared;
  // Bytes that are frozen.
  size_t frozen;
  // Bytes that cannot be frozen without copying.
  size_t anonymous;
  // Bytes of free runs.
  size_t free;
  // Mappings, approximately.
  size_t segments;
  // Error number with which the last memory file was refused, or 0.
  int refused;
  // 0.
  int reserved;
  // Bytes of the longest free run.
  size_t longest_free;
  // Freezes that froze something, including those by forks.
  size_t freezes;
  // Files that could not be sealed: something, probably a device, still held their pages, and may write to frozen
  // memory.
  size_t unsealed;
  // Bytes of frozen memory that a fork has left mapped a second time: calls that take or give back memory unmap it,
  // 2 MiB each, and trim or freeze all.
  size_t aside;
};

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Tells what went wrong in this thread's last failed call, in words, with values and the way out; an empty string
// before the first. Valid until this thread's next call that fails. Never null.
const char *palimpsest_error_message(void);

// Returns the version of this interface: major, minor and patch, one byte each, from bit 16 down, as
// `PALIMPSEST_VERSION` was when the program was compiled. Programs compiled against the same major version (and, while
// that is 0, the same minor one) work with this library.
uint32_t palimpsest_version(void);

// Opens packs. `options` may be null for the defaults.
//
// # Safety
//
// 1. `options` is null or valid for reading as many bytes as its first field says.
// 2. `packs` is null or valid for writing.
// 3. With `PALIMPSEST_UNWIND`: what is given to `palimpsest_staged_set_eh_frame` and `palimpsest_alloc_set_eh_frame`
//    correctly describes how to unwind the code.
enum palimpsest_result palimpsest_packs_open(const struct palimpsest_packs_options *options,
                                             struct palimpsest_packs *packs);

// Gives the handle up. Programs, and what is staged, stay; the memory goes with the last of them.
enum palimpsest_result palimpsest_packs_close(struct palimpsest_packs packs);

// Fills in as much of `stats` as its field `size` says it has.
//
// # Safety
//
// 1. `stats` is null, or valid for reading its first field and for writing as many bytes as that says.
enum palimpsest_result palimpsest_packs_get_stats(struct palimpsest_packs packs, struct palimpsest_packs_stats *stats);

// Reclaims released programs that nobody can be inside of, and tells how many bytes. `bytes` may be null.
//
// # Safety
//
// 1. `bytes` is null or valid for writing.
enum palimpsest_result palimpsest_packs_reclaim(struct palimpsest_packs packs, size_t *bytes);

// Finds the program that covers `address`, including released ones as long as they may run. For signal handlers, too:
// waits for nobody, takes nothing from the heap, and leaves no message. `PALIMPSEST_BUSY` if another thread is
// changing handles, or forking, just then.
//
// # Safety
//
// 1. `found` is null, or valid for reading its first field and for writing as many bytes as that says.
enum palimpsest_result palimpsest_lookup(struct palimpsest_packs packs,
                                         const void *address,
                                         struct palimpsest_found *found);

// Loads code that runs at any address, at a multiple of `align` bytes. `name`, for observers, may be null.
//
// # Safety
//
// 1. `name` is null or a string with a zero at its end.
// 2. `code` is null, or valid for reading `len` bytes.
// 3. `program` is null or valid for writing.
enum palimpsest_result palimpsest_load(struct palimpsest_packs packs,
                                       const char *name,
                                       const void *code,
                                       size_t len,
                                       size_t align,
                                       struct palimpsest_program *program);

// Takes a place for a program of `len` bytes at a multiple of `align`. `address` is where it will run, `image` where
// to write its bytes until it is finalized: at first `len` bytes of traps.
//
// # Safety
//
// 1. `staged`, `address` and `image` are null or valid for writing.
enum palimpsest_result palimpsest_stage(struct palimpsest_packs packs,
                                        size_t len,
                                        size_t align,
                                        struct palimpsest_staged *staged,
                                        size_t *address,
                                        void **image);

// Names what is staged, for observers and `palimpsest_lookup`.
//
// # Safety
//
// 1. `name` is null or a string with a zero at its end.
enum palimpsest_result palimpsest_staged_set_name(struct palimpsest_staged staged, const char *name);

// Gives the program unwind tables: the bytes of an `.eh_frame` section with absolute pointers to its final address.
//
// # Safety
//
// 1. `eh_frame` is null, or valid for reading `len` bytes.
enum palimpsest_result palimpsest_staged_set_eh_frame(struct palimpsest_staged staged,
                                                      const void *eh_frame,
                                                      size_t len);

// Says where to go on after faults, for the handler that calls `palimpsest_lookup`.
//
// # Safety
//
// 1. `faults` is null, or valid for reading `count` of them.
enum palimpsest_result palimpsest_staged_set_faults(struct palimpsest_staged staged,
                                                    const struct palimpsest_fault *faults,
                                                    size_t count);

// Copies what is staged into the packs, all with one core synchronisation if the machine needs it. `programs` gets as
// many handles, in the same order. After an error none is in place; the staged handles are gone, too, except after
// `PALIMPSEST_INVALID` or `PALIMPSEST_STALE`. Returns `PALIMPSEST_BUSY` if another thread uses one of them.
//
// # Safety
//
// 1. `staged` is null or valid for reading `count` handles, `programs` null or valid for writing as many.
// 2. Nobody writes to the images meanwhile or later.
enum palimpsest_result palimpsest_finalize(struct palimpsest_packs packs,
                                           const struct palimpsest_staged *staged,
                                           size_t count,
                                           struct palimpsest_program *programs);

// Gives back the place of what is staged.
enum palimpsest_result palimpsest_staged_drop(struct palimpsest_staged staged);

// Tells where a program begins, as a function pointer to call, and its length in bytes. Either may be null.
//
// # Safety
//
// 1. `entry` and `len` are null or valid for writing.
enum palimpsest_result palimpsest_program_entry(struct palimpsest_program program, const void **entry, size_t *len);

// Finds the handle of the program that begins at `address` and is not released. Looks at all of them: for callers that
// keep only addresses, and not for frequent use.
//
// # Safety
//
// 1. `program` is null or valid for writing.
enum palimpsest_result palimpsest_program_at(const void *address, struct palimpsest_program *program);

// Releases a program. Its bytes stay as they are until no pinned thread and no forked child can be inside.
enum palimpsest_result palimpsest_program_release(struct palimpsest_program program);

// Takes a place for `len` bytes of data at a multiple of `align`, in the region of the programs: never executable, and
// writable by programs if `is_writable` is not 0. `address` and `image` are as in `palimpsest_stage`; the image starts
// as zeros.
//
// # Safety
//
// 1. `staged`, `address` and `image` are null or valid for writing.
enum palimpsest_result palimpsest_stage_data(struct palimpsest_packs packs,
                                             int is_writable,
                                             size_t len,
                                             size_t align,
                                             struct palimpsest_staged_data *staged,
                                             size_t *address,
                                             void **image);

// Copies what is staged into place. The staged handle is gone after an error, too, unless that is
// `PALIMPSEST_INVALID`.
//
// # Safety
//
// 1. `data` is null or valid for writing.
// 2. Nobody writes to the image meanwhile or later.
enum palimpsest_result palimpsest_finalize_data(struct palimpsest_staged_data staged, struct palimpsest_data *data);

// Gives back the place of what is staged.
enum palimpsest_result palimpsest_staged_data_drop(struct palimpsest_staged_data staged);

// Releases data. As with programs, it stays as it is until nobody can be in a program that uses it.
enum palimpsest_result palimpsest_data_release(struct palimpsest_data data);

// Takes places for code, for data that it reads and for data that it writes, near each other: relative calls, loads
// and stores reach from each part to each. Fills in `places` up to its field `size`.
//
// # Safety
//
// 1. `request` is null or valid for reading as many bytes as its first field says.
// 2. `alloc` is null or valid for writing.
// 3. `places` is null, or valid for reading its first field and for writing as many bytes as that says.
enum palimpsest_result palimpsest_alloc_allocate(struct palimpsest_packs packs,
                                                 const struct palimpsest_alloc_request *request,
                                                 struct palimpsest_alloc *alloc,
                                                 struct palimpsest_alloc_places *places);

// Shortens a part to its first `len` bytes, at least 1, and gives back the whole chunks of 64 bytes behind them. The
// `working` bytes behind them are no longer the caller's: others may get their places.
//
// # Safety
//
// 1. Nobody uses the part's `working` bytes meanwhile, nor those behind the first `len` later.
enum palimpsest_result palimpsest_alloc_shrink(struct palimpsest_alloc alloc, int part, size_t len);

// Names the allocation, for observers and `palimpsest_lookup`.
//
// # Safety
//
// 1. `name` is null or a string with a zero at its end.
enum palimpsest_result palimpsest_alloc_set_name(struct palimpsest_alloc alloc, const char *name);

// Gives the code unwind tables: the bytes of an `.eh_frame` section with absolute pointers to its final address.
//
// # Safety
//
// 1. `eh_frame` is null, or valid for reading `len` bytes.
enum palimpsest_result palimpsest_alloc_set_eh_frame(struct palimpsest_alloc alloc, const void *eh_frame, size_t len);

// Tells observers which functions the code consists of: perf, gdb and the like then name these instead of the whole.
// Replaces what was told before. Without observers they are checked, and not kept.
//
// # Safety
//
// 1. `functions` is null or valid for reading `count` of them, and so are their names.
enum palimpsest_result palimpsest_alloc_set_functions(struct palimpsest_alloc alloc,
                                                      const struct palimpsest_function *functions,
                                                      size_t count);

// Puts allocations in place, all with one core synchronisation if the machine needs it, and opens the write view once
// (`write_view` 1). From then on they are known only by their addresses, and stay until `palimpsest_alloc_release`,
// even when the packs are closed. After an error none is in place; the handles are gone, too, except after
// `PALIMPSEST_INVALID` or `PALIMPSEST_STALE`. Returns `PALIMPSEST_BUSY` if another thread uses one of them.
//
// # Safety
//
// 1. `allocs` is null or valid for reading `count` handles.
// 2. Nobody writes to their `working` bytes meanwhile or later.
enum palimpsest_result palimpsest_alloc_finalize(struct palimpsest_packs packs,
                                                 const struct palimpsest_alloc *allocs,
                                                 size_t count);

// Gives back the places of an allocation that is not finalized.
//
// # Safety
//
// 1. Nobody uses its `working` bytes meanwhile or later.
enum palimpsest_result palimpsest_alloc_drop(struct palimpsest_alloc alloc);

// Releases finalized allocations, each named by the first address of any of its parts. Their bytes stay as they are
// until no pinned thread and no forked child can be inside. Returns `PALIMPSEST_NOT_FOUND` if nothing is at one of the
// addresses, `PALIMPSEST_STALE` if it was released before, `PALIMPSEST_INVALID` if it is inside a part or belongs to a
// program. Then the addresses before it in the list are released, and those after it are not. `released` gets the
// number of released ones, and may be null.
//
// # Safety
//
// 1. `addresses` is null or valid for reading `count` addresses.
// 2. `released` is null or valid for writing.
enum palimpsest_result palimpsest_alloc_release(struct palimpsest_packs packs,
                                                const size_t *addresses,
                                                size_t count,
                                                size_t *released);

// Finds the allocation that contains `address`, also a released one as long as it may run. Signal handlers may call
// this: it never waits, does not use the heap, and leaves no message. Returns `PALIMPSEST_NOT_FOUND` also for programs
// and data that other functions have made, and `PALIMPSEST_BUSY` while another thread changes handles or forks.
//
// # Safety
//
// 1. `found` is null, or valid for reading its first field and for writing as many bytes as that says.
enum palimpsest_result palimpsest_alloc_query(struct palimpsest_packs packs,
                                              size_t address,
                                              struct palimpsest_alloc_found *found);

// Tells observers which lines of a source the program comes from, so that gdb and perf show them: sorted by offset,
// each inside the program. Of two at the same offset the later one counts. Replaces what was told before. Without
// observers that show lines (`PALIMPSEST_GDB`, `PALIMPSEST_JIT_DUMP`) they are checked, and forgotten.
//
// # Safety
//
// 1. `lines` is null or valid for reading `count` of them, and so are their files.
enum palimpsest_result palimpsest_staged_set_lines(struct palimpsest_staged staged,
                                                   const struct palimpsest_line *lines,
                                                   size_t count);

// As `palimpsest_staged_set_lines`, of the code of an allocation: before or after `palimpsest_alloc_set_functions`,
// with offsets from the first byte of the code. Lines that a later `palimpsest_alloc_shrink` cuts off are left out.
//
// # Safety
//
// 1. `lines` is null or valid for reading `count` of them, and so are their files.
enum palimpsest_result palimpsest_alloc_set_lines(struct palimpsest_alloc alloc,
                                                  const struct palimpsest_line *lines,
                                                  size_t count);

// Says that this thread may run programs of `packs` by address from now on, until as many calls of `palimpsest_unpin`:
// what others release meanwhile stays as it is. Not for signal handlers. Pin anew in forked children.
enum palimpsest_result palimpsest_pin(struct palimpsest_packs packs);

// Takes back one `palimpsest_pin`, also of closed packs.
enum palimpsest_result palimpsest_unpin(struct palimpsest_packs packs);

// Changes all sites, 262143 at most, with as few core synchronisations as possible. When it returns `PALIMPSEST_OK`
// every core runs the new code. After `PALIMPSEST_PARTLY` some sites are new, or all are and some core may still run
// old code for a while: the message says which. After any other error but `PALIMPSEST_PANIC` everything is as it was.
// `applied` may be null. Not for signal handlers. Returns `PALIMPSEST_INVALID` for a site without a program that is
// not in mapped code that can be read, as far as the kernel tells (`/proc/self/maps`).
//
// # Safety
//
// 1. `sites` is null or valid for reading `count` of them, and so are their bytes; the addresses of sites without a
//    program are in mapped, readable code that stays loaded.
// 2. The old bytes of a site are one instruction, and so are the new ones; no jump leads between them; and all threads
//    that run the code work with either.
// 3. `applied` is null, or valid for reading its first field and for writing as many bytes as that says.
enum palimpsest_result palimpsest_poke(const struct palimpsest_site *sites,
                                       size_t count,
                                       struct palimpsest_applied *applied);

// Turns a key's switch: on unless `is_on` is 0. When it returns, every pass through a branch that begins later sees
// the new state.
//
// For all functions that switch keys: after `PALIMPSEST_PARTLY` the message says what is missing. If some branches
// could not be written, the key counts as it was, and the same call again puts them right. If only cores could not be
// synchronised, the key is switched, and some core may see the old state for a while: do not repeat the call.
enum palimpsest_result palimpsest_key_set(const palimpsest_key *key, int is_on);

// Keeps a key on, whatever its switch says, until `palimpsest_key_disable`. Calls are counted, also one that returns
// `PALIMPSEST_PARTLY` because cores could not be synchronised.
enum palimpsest_result palimpsest_key_enable(const palimpsest_key *key);

// Takes back one `palimpsest_key_enable`.
enum palimpsest_result palimpsest_key_disable(const palimpsest_key *key);

// Tells whether a key is on: 1 or 0.
//
// # Safety
//
// 1. `is_on` is null or valid for writing.
enum palimpsest_result palimpsest_key_is_on(const palimpsest_key *key, int *is_on);

// Turns the switches of all keys whose names match `pattern` (`*` and `?` as in a shell) in one batch, and tells how
// many changed. `count` may be null.
//
// # Safety
//
// 1. `pattern` is null or a string with a zero at its end.
// 2. `count` is null or valid for writing.
enum palimpsest_result palimpsest_keys_set(const char *pattern, int is_on, size_t *count);

// Replaces the private memory of this process by private mappings of sealed files with the same bytes, so that a fork
// need not copy its page tables. A second freeze freezes what is new, and repairs what was written to since: that is
// frozen again, or becomes ordinary memory in huge pages. With `pause_ns` it plans, and changes no memory
// (`palimpsest_freeze_slice`). `options` may be null for the defaults, and `report` may be null:
// `palimpsest_report_text` and `palimpsest_report_get_range` tell the rest.
//
// # Safety
//
// 1. `options` is null or valid for reading as many bytes as its first field says; `report` is null, or valid for
//    reading its first field and for writing as many bytes as that says.
// 2. From now on nobody discards, resizes or moves frozen memory except through `palimpsest_madvise` and
//    `palimpsest_mremap`; who maps over it, or changes its rights, its protection key or its flags, uses
//    `palimpsest_replaced`, `palimpsest_mprotect`, `palimpsest_pkey_mprotect` and `palimpsest_changed`; no direct or
//    asynchronous I/O is under way on private memory; no other process shares or writes to it.
enum palimpsest_result palimpsest_freeze(const struct palimpsest_freeze_options *options,
                                         struct palimpsest_freeze_report *report);

// Tells what `palimpsest_freeze` would do. Changes nothing but this thread's last report.
//
// # Safety
//
// 1. As for `palimpsest_freeze`.
enum palimpsest_result palimpsest_survey(const struct palimpsest_freeze_options *options,
                                         struct palimpsest_freeze_report *report);

// `fork`, with an account of what forks take: repairs frozen memory that was written to when that pays. `child` is set
// to 0 in the child, and to the child's process id in the parent.
//
// # Safety
//
// 1. `child` is null or valid for writing.
// 2. As for `fork`: in the child of a process with several threads, only async-signal-safe functions are called.
// 3. Contract 2 of `palimpsest_freeze`, if this process or one that it was forked from has frozen.
enum palimpsest_result palimpsest_fork(pid_t *child);

// Tells what forks cost, and when a repair follows. All zero if nothing is frozen.
//
// # Safety
//
// 1. `status` is null, or valid for reading its first field and for writing as many bytes as that says.
enum palimpsest_result palimpsest_get_fork_status(struct palimpsest_fork_status *status);

// Returns how many bytes of this process are frozen.
size_t palimpsest_frozen_bytes(void);

// Returns the `index`th range of this thread's last freeze or survey: those that are frozen, or would be, and then the
// others that have populated pages, with the reason. There are `ranges` in `palimpsest_freeze_report`;
// `PALIMPSEST_NOT_FOUND` behind the last.
//
// # Safety
//
// 1. `range` is null, or valid for reading its first field and for writing as many bytes as that says.
enum palimpsest_result palimpsest_report_get_range(size_t index, struct palimpsest_report_range *range);

// Tells of this thread's last freeze or survey in words, in several lines: what is frozen, what is not and why, what
// it takes and saves, why it ended early if it did, and notes on what changed in the process. An empty string before
// the first. Valid until this thread's next freeze or survey. Never null.
const char *palimpsest_report_text(void);

// Takes one slice of a freeze under way: call it when the program has nothing else to do. Does nothing if nothing is
// left. `progress` may be null. After an error nothing was done, and a later call may succeed; after many in a row the
// freeze ends.
//
// # Safety
//
// 1. `progress` is null, or valid for reading its first field and for writing as many bytes as that says.
// 2. Contract 2 of `palimpsest_freeze`.
enum palimpsest_result palimpsest_freeze_slice(struct palimpsest_freeze_progress *progress);

// As `palimpsest_freeze_slice`, but goes on while `is_idle` returns something other than 0 after a slice: cheaper than
// as many calls. Where other threads must be held, it takes one slice, so that they can go on.
//
// # Safety
//
// 1. As for `palimpsest_freeze_slice`.
// 2. `is_idle` is null or such a function, and may be called with `argument`. It makes no system calls that wait, does
//    not use the heap and changes no mappings: it runs while all signals are blocked. It returns.
enum palimpsest_result palimpsest_freeze_while(palimpsest_is_idle is_idle,
                                               void *argument,
                                               struct palimpsest_freeze_progress *progress);

// Tells how far a freeze in slices has come. Waits for nobody.
//
// # Safety
//
// 1. `progress` is null, or valid for reading its first field and for writing as many bytes as that says.
enum palimpsest_result palimpsest_freeze_get_progress(struct palimpsest_freeze_progress *progress);

// Tells in how many nanoseconds a thread that is about to wait should take a slice. `PALIMPSEST_NOT_FOUND` if none is
// due: the freeze is done, was another process's, or goes on at forks only. For event loops: waits for nobody, and
// leaves no message.
//
// # Safety
//
// 1. `wait_ns` is null or valid for writing.
enum palimpsest_result palimpsest_next_slice(uint64_t *wait_ns);

// Reports that the last slice kept somebody waiting for `taken_ns` nanoseconds: puts off the next one at a wait, so
// that slices take at most a fifth of the time.
void palimpsest_put_off_slices(uint64_t taken_ns);

// Waits for a deputy (`deputy` in `palimpsest_freeze_options`) that is at work, for some milliseconds at most. Call it
// before this process executes another program, which would have a child that it does not know, and before it installs
// a seccomp filter. For signal handlers, too.
void palimpsest_dismiss_deputy(void);

// Waits for a deputy, too, if this process was refused a child or a thread (`EAGAIN`): the deputy counts for
// `RLIMIT_NPROC` and `pids.max`. Returns 1 if there was one, so that another try is worth it, else 0. For signal
// handlers, too.
int palimpsest_make_room(void);

// Takes a snapshot. `options` may be null for the whole process. The running stack goes on, so that variables in
// frames keep their values when it is restored. There can be 64 at a time, and one of the whole process.
//
// # Safety
//
// 1. `options` is null or valid for reading as many bytes as its first field says, and so are the ranges it names;
//    `snapshot` is null or valid for writing.
// 2. Nobody but the calling thread uses the memory meanwhile: no thread, process, device or asynchronous I/O.
// 3. From now on nobody expects zeros after discarding that memory (`MADV_DONTNEED`, `MADV_FREE`), and nobody closes
//    a descriptor that it did not open.
enum palimpsest_result palimpsest_snapshot_take(const struct palimpsest_snapshot_options *options,
                                                struct palimpsest_snapshot *snapshot);

// Restores everything. `restored` may be null. Only for the thread that took the snapshot (`PALIMPSEST_REFUSED`), and
// not from a target of the same one (`PALIMPSEST_BUSY`). After `PALIMPSEST_SYSTEM` or `PALIMPSEST_NO_ROOM` memory may
// be restored in part.
//
// # Safety
//
// 1. `restored` is null, or valid for reading its first field and for writing as many bytes as that says.
// 2. Contracts 2 and 3 of `palimpsest_snapshot_take`, and what `palimpsest_snapshot_options` says that the caller
//    knows.
// 3. Pointers in live frames are not followed to memory that no longer exists, such as what was allocated since.
enum palimpsest_result palimpsest_snapshot_restore(struct palimpsest_snapshot snapshot,
                                                   struct palimpsest_restored *restored);

// Calls `target` with `argument` and restores everything, whether the target returns or leaves by
// `palimpsest_abandon`. `value` gets what it returned, or was abandoned with; `is_abandoned` tells which of the two;
// both may be null, and so may `restored`. What the target needs in its next round must not be restored: keep it on
// the caller's stack. The set of blocked signals is restored after `palimpsest_abandon`, unless `keep_mask` is not 0.
//
// # Safety
//
// 1. As for `palimpsest_snapshot_restore`; `value` and `is_abandoned` are null or valid for writing.
// 2. `target` is null or such a function, and may be called. No exception leaves it, nor `longjmp`, nor the end of the
//    thread.
enum palimpsest_result palimpsest_snapshot_run(struct palimpsest_snapshot snapshot,
                                               int keep_mask,
                                               palimpsest_target target,
                                               void *argument,
                                               size_t *value,
                                               int *is_abandoned,
                                               struct palimpsest_restored *restored);

// Takes a snapshot with the stack, and calls `body`. Whenever `body` leaves by `palimpsest_abandon`, everything is
// restored, including the stack below this call, and `body` is called anew. When `body` returns, so does this
// function, with its answer in `value`, which may be null; then nothing is restored, and the snapshot is gone.
// `keep_mask` is as for `palimpsest_snapshot_run`.
//
// # Safety
//
// 1. As for `palimpsest_snapshot_take` and `palimpsest_snapshot_run`.
enum palimpsest_result palimpsest_snapshot_rounds(const struct palimpsest_snapshot_options *options,
                                                  int keep_mask,
                                                  palimpsest_body body,
                                                  void *argument,
                                                  size_t *value);

// Leaves this thread's innermost `palimpsest_snapshot_run` or `_rounds` from anywhere inside: from signal handlers,
// too, on whatever stack. Ends the process if there is none.
//
// # Safety
//
// 1. Nobody needs what the frames in between would have done on their way out, or the restore undoes it: no lock
//    outside restored memory is held. C++ destructors do not run.
void palimpsest_abandon(size_t value) __attribute__((noreturn));

// Says that `range` is written in every round, so that restores without a search restore it, too. Skips what the
// snapshot does not hold.
enum palimpsest_result palimpsest_snapshot_declare(struct palimpsest_snapshot snapshot, struct palimpsest_range range);

// Tells how much the snapshot holds.
//
// # Safety
//
// 1. `extent` is null, or valid for reading its first field and for writing as many bytes as that says.
enum palimpsest_result palimpsest_snapshot_get_extent(struct palimpsest_snapshot snapshot,
                                                      struct palimpsest_snapshot_extent *extent);

// Returns the `index`th range of writable memory that the snapshot does not hold, and why. `PALIMPSEST_NOT_FOUND`
// behind the last.
//
// # Safety
//
// 1. `left` is null, or valid for reading its first field and for writing as many bytes as that says.
enum palimpsest_result palimpsest_snapshot_not_taken(struct palimpsest_snapshot snapshot,
                                                     size_t index,
                                                     struct palimpsest_not_taken *left);

// Ends a snapshot. Memory stays as it is.
enum palimpsest_result palimpsest_snapshot_drop(struct palimpsest_snapshot snapshot);

// `madvise` that is right for frozen memory, too: discarded memory is zeros afterwards, not the bytes of the freeze.
// Returns 0, or -1 with `errno`.
//
// # Safety
//
// 1. As for `madvise`: discarding takes contents away.
int palimpsest_madvise(void *address, size_t len, int advice);

// `mremap` that is right for frozen memory, too. `new_address` counts with `MREMAP_FIXED` only. Returns the new
// address, or `MAP_FAILED` with `errno`.
//
// # Safety
//
// 1. As for `mremap`: memory is moved and cut, and with `MREMAP_FIXED` replaced.
void *palimpsest_mremap(void *address, size_t len, size_t new_len, int flags, void *new_address);

// `mprotect` that is right for frozen memory, too: what is frozen, thawed or repaired later gets the new rights.
// Returns 0, or -1 with `errno`.
//
// # Safety
//
// 1. As for `mprotect`.
int palimpsest_mprotect(void *address, size_t len, int rights);

// `pkey_mprotect` that is right for frozen memory, too: what is thawed or repaired later gets the new rights and the
// key. Returns 0, or -1 with `errno`.
//
// # Safety
//
// 1. As for `pkey_mprotect`.
int palimpsest_pkey_mprotect(void *address, size_t len, int rights, int key);

// Notes that an `mmap` of the caller's has replaced what was at `address`: what was frozen there no longer counts.
void palimpsest_replaced(const void *address, size_t len);

// Notes that memory at `address` is about to get other flags by calls that these functions do not make, such as
// `process_madvise` with `MADV_DONTFORK`: from now on that memory stays where it is. Call it again afterwards if other
// threads may freeze.
void palimpsest_changed(const void *address, size_t len);

// Returns 0 if nothing of whole pages at `address` is frozen, or is going to be by a freeze in slices under way.
// Returns 1 if something is, may be, or was until it was thawed. For signal handlers, too: takes no lock.
int palimpsest_may_be_frozen(const void *address, size_t len);

// `mlock` that thaws memory first, since locking frozen memory holds it twice. If that is not possible (the process
// has other threads, or is a child of the one that froze), it is locked all the same. Returns 0, or -1 with `errno`.
int palimpsest_mlock(const void *address, size_t len);

// `mlockall` that with `MCL_CURRENT` thaws first, as `palimpsest_mlock` does: upwards, up to the first memory that
// cannot be thawed (`palimpsest_thaw`). What is behind that is locked as it is. After `MCL_FUTURE` the process refuses
// to freeze and to repair, unless it answers for `PALIMPSEST_LOCKED_MEMORY`. Returns 0, or -1 with `errno`.
int palimpsest_mlockall(int flags);

// Turns what is frozen of whole pages at `address` into ordinary memory with the same bytes, rights and protection
// key; a key must let the calling thread read. Holds other threads still if the last freeze was allowed to.
// `PALIMPSEST_BUSY` if a freeze is under way, if there are other threads that must not or cannot be held, or if the
// calling code uses the memory itself; `PALIMPSEST_REFUSED` for memory of which too little is known: it has tags, or
// `palimpsest_changed` names it; `PALIMPSEST_NO_ROOM` without memory, or addresses, for a copy. What was not thawed
// until then, upwards, is still frozen.
enum palimpsest_result palimpsest_thaw(const void *address, size_t len);

// As `palimpsest_thaw`, of all that is frozen. Everything that can be thawed is. Forks are plain until the next
// freeze, and a freeze in slices that was under way ends.
enum palimpsest_result palimpsest_thaw_all(void);

// Destroys the bytes that the memory held when it was frozen: call it after erasing a secret. The memory keeps its
// present contents. After an error, which is as of `palimpsest_thaw`, it is done as soon as possible: by the next
// freeze or repair, and in each child of `palimpsest_fork` before that returns.
enum palimpsest_result palimpsest_forget(const void *address, size_t len);

// Notes that the process has installed a seccomp filter. From then on `palimpsest_madvise` and `palimpsest_mremap`
// make memory calls only, `palimpsest_fork` forks plainly, and nothing thaws; nothing else is done that the filter
// could forbid.
void palimpsest_confined(void);

// `malloc` from this process's arena: an allocator whose page tables a fork need not copy. Null and `ENOMEM` without
// memory; a size of 0 gets a block of its own.
//
// A block belongs to the caller until it is passed to `palimpsest_arena_free` or `_realloc`. Do not mix up blocks of
// the arena and of the C library's `malloc`: the arena ends the process when it is given a pointer that it did not
// hand out. A child of `fork()` may go on using the arena, and has blocks of its own from then on. The C library's
// `fork()` freezes by itself; a raw clone system call does not, see `palimpsest_arena_freeze`.
void *palimpsest_arena_malloc(size_t size);

// `calloc`.
void *palimpsest_arena_calloc(size_t count, size_t size);

// `realloc`; a size of 0 counts as 1.
//
// # Safety
//
// 1. `block` is null or a block of this arena that is not freed, and is not used again unless null is returned.
void *palimpsest_arena_realloc(void *block, size_t size);

// `free`.
//
// # Safety
//
// 1. `block` is null or a block of this arena that is not freed, and is not used again.
void palimpsest_arena_free(void *block);

// `aligned_alloc`: null and `EINVAL` unless `align` is a power of two.
void *palimpsest_arena_aligned_alloc(size_t align, size_t size);

// `malloc_usable_size`: 0 for null.
//
// # Safety
//
// 1. `block` is null or a block of this arena that is not freed.
size_t palimpsest_arena_usable_size(void *block);

// Freezes what was allocated so far; other threads may go on. Returns 0, or -1 with `errno`: then some memory stays
// shared, and is missing in forked children. Call it before a raw clone system call.
int palimpsest_arena_freeze(void);

// Freezes, and freezes again what this process has written to since: a written page makes each fork copy the page
// tables around it, about 15 µs for each MiB. Copies about 0.4 ms for each MiB, and separates what was written from
// what was not, so that the next call copies only what was written again. For servers: between two forks, while nobody
// waits. `copied` gets the bytes that were copied, and may be null. Returns 0, or -1 with `errno`: what was done until
// then stays. `EINVAL` if `copied` is misaligned, then nothing is done; `ENOTSUP` if the kernel does not tell which
// pages were written.
//
// # Safety
//
// 1. `copied` is null or valid for writing, and is not in a block of the arena.
// 2. Nobody writes to blocks of the arena, or allocates or frees any, until the call returns: no other thread, no
//    signal handler, no device.
int palimpsest_arena_refreeze(size_t *copied);

// Gives memory of free blocks back to the system. Returns how many bytes.
size_t palimpsest_arena_trim(void);

// Fills in as much of `stats` as its field `size` says it has. Returns 0, or -1 with `EINVAL` if the pointer is null
// or misaligned, or `size` does not even cover the field itself.
//
// # Safety
//
// 1. `stats` is null, or valid for reading its first field and for writing as many bytes as that says.
int palimpsest_arena_stats(struct palimpsest_arena_stats *stats);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* PALIMPSEST_H */
