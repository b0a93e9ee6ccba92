/*
 * Palimpsest for C. Link libpalimpsest_capi.so, or libpalimpsest_capi.a with -lpthread -ldl -lm: both are built by
 * `cargo build --release -p palimpsest-capi`.
 *
 * Errors are told as the C library tells them: null or -1, and errno.
 */
#ifndef PALIMPSEST_H
#define PALIMPSEST_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * One arena of the process: an allocator whose page tables a fork need not copy.
 *
 * Thread-safe. A child of fork() may go on using the arena, and has blocks of its own from then on. fork() of the C
 * library freezes by itself; a raw clone system call does not, see palimpsest_arena_freeze.
 *
 * A block belongs to the caller until it is passed to palimpsest_arena_free or realloc. Blocks of this arena and of the
 * C library's malloc must not be mixed up: the arena ends the process when it is given a pointer that it did not hand
 * out.
 */

/* As malloc, calloc, realloc, free. NULL and ENOMEM without memory; a size of 0 gets a block of its own. */
void *palimpsest_arena_malloc(size_t size);
void *palimpsest_arena_calloc(size_t count, size_t size);
void *palimpsest_arena_realloc(void *block, size_t size);
void palimpsest_arena_free(void *block);

/* `align` is any power of two (else NULL and EINVAL); `size` need not be a multiple of it. */
void *palimpsest_arena_aligned_alloc(size_t align, size_t size);

/* Bytes that may be used of a block; 0 for NULL. */
size_t palimpsest_arena_usable_size(void *block);

/*
 * Freezes what was allocated so far; other threads may go on. 0, or -1 and errno: then some memory stays shared, and is
 * missing in forked children. To be called before a raw clone system call.
 */
int palimpsest_arena_freeze(void);

/* Gives memory of free blocks back to the system; returns how many bytes. */
size_t palimpsest_arena_trim(void);

struct palimpsest_arena_stats {
    size_t size;      /* sizeof(struct palimpsest_arena_stats), set by the caller */
    size_t blocks;    /* allocated blocks */
    size_t bytes;     /* their bytes */
    size_t shared;    /* bytes that the next freeze freezes without copying */
    size_t frozen;    /* bytes that are frozen */
    size_t anonymous; /* bytes that cannot be frozen without copying */
    size_t free;      /* bytes of free runs */
    size_t segments;  /* mappings, about */
    int refused;      /* errno with which the last memory file was refused, or 0 */
};

/* Fills in the first `size` bytes. 0, or -1 and EINVAL. */
int palimpsest_arena_stats(struct palimpsest_arena_stats *stats);

#ifdef __cplusplus
}
#endif

#endif
