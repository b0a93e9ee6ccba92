/*
 * Static keys in C and C++: branches that cost one instruction, and are switched by rewriting it. palimpsest.h includes
 * this file.
 *
 *     PALIMPSEST_KEY(net_trace, "net.trace", 0);            in one source file, outside functions: off at first
 *     PALIMPSEST_KEY_DECLARE(net_trace, 0);                 in others of the same program or library
 *
 *     if (palimpsest_branch_unlikely(net_trace)) trace();   wherever it is wanted
 *
 *     palimpsest_key_set(&net_trace, 1);                    in any thread, at any time
 *
 * A name consists of letters, digits and . _ - : /; patterns do not find keys with other names. A declaration, which
 * may be in a header that the defining file includes, gives the same first state as the definition: otherwise the
 * compiler refuses it, or, if it cannot see both, switching does. Key and branches must be in one program or shared
 * library, or the linker refuses them.
 *
 * Needs GCC 11 or Clang 13. Branches cost what is promised with optimisation only; without it they are right all the
 * same. For x86-64 and AArch64.
 */
#ifndef PALIMPSEST_KEY_H
#define PALIMPSEST_KEY_H

#include <stdint.h>

/* A key. The layout is that of version 2 of the sections (crates/text/src/key/note.rs); nobody else reads it. */
struct palimpsest_key {
    const char *name;
    uint64_t name_len;
    const void *note;
    uint64_t lock;
    uint32_t enabled;
    uint32_t switched;
    uint32_t on;
    uint32_t starts_on;
    uint64_t unused;
} __attribute__((aligned(64)));

typedef struct palimpsest_key palimpsest_key;

/* The note by which the library finds the keys and branches of this object; each source file may have it. The first
 * entry of each section is empty: it makes the linker define the bounds of sections that would otherwise be empty. */
#define PALIMPSEST_KEY_NOTE_                                       \
    ".ifndef palimpsest_key_note\n"                                \
    ".pushsection .note.palimpsest,\"a\",%note\n"                  \
    ".balign 4\n"                                                  \
    ".long 11, 16, 2\n"                                            \
    ".asciz \"Palimpsest\"\n"                                      \
    ".balign 4\n"                                                  \
    ".hidden __start_palimpsest_sites\n"                           \
    ".hidden __stop_palimpsest_sites\n"                            \
    ".hidden __start_palimpsest_keys\n"                            \
    ".hidden __stop_palimpsest_keys\n"                             \
    ".weak palimpsest_key_note\n"                                  \
    ".hidden palimpsest_key_note\n"                                \
    "palimpsest_key_note:\n"                                       \
    ".long __start_palimpsest_sites - .\n"                         \
    ".long __stop_palimpsest_sites - .\n"                          \
    ".long __start_palimpsest_keys - .\n"                          \
    ".long __stop_palimpsest_keys - .\n"                           \
    ".popsection\n"                                                \
    ".pushsection palimpsest_sites,\"aR\",%progbits\n"             \
    ".balign 4\n"                                                  \
    ".zero 16\n"                                                   \
    ".popsection\n"                                                \
    ".endif\n"

#ifdef __cplusplus
#define PALIMPSEST_EXTERN_ extern "C"
#else
#define PALIMPSEST_EXTERN_ extern
#endif

PALIMPSEST_EXTERN_ const char palimpsest_key_note[] __attribute__((visibility("hidden")));

/* The first state, as the length of an array that does not exist: it may be declared again, but not differently. */
#define PALIMPSEST_STARTS_ON_(key) (sizeof(palimpsest_starts_on_##key) - 1)

#define PALIMPSEST_KEY_DECLARE(key, is_on)                                                    \
    PALIMPSEST_EXTERN_ struct palimpsest_key key __attribute__((visibility("hidden")));       \
    extern const char palimpsest_starts_on_##key[(is_on) ? 2 : 1]

#define PALIMPSEST_KEY(key, text, is_on)                                                      \
    __asm__(PALIMPSEST_KEY_NOTE_);                                                            \
    PALIMPSEST_KEY_DECLARE(key, is_on);                                                       \
    struct palimpsest_key key __attribute__((section("palimpsest_keys"), used, retain)) = {   \
        text,                                                                                 \
        sizeof(text) - 1,                                                                     \
        palimpsest_key_note,                                                                  \
        0,                                                                                    \
        0,                                                                                    \
        PALIMPSEST_STARTS_ON_(key),                                                           \
        PALIMPSEST_STARTS_ON_(key),                                                           \
        PALIMPSEST_STARTS_ON_(key),                                                           \
        0,                                                                                    \
    }

/* The entry that describes the site `2:`. `?` ties it to the group of its function, if that is inline in C++. */
#define PALIMPSEST_SITE_                                     \
    ".pushsection palimpsest_sites,\"aR?\",%%progbits\n"     \
    ".balign 4\n"                                            \
    ".long 2b - .\n"                                         \
    ".long %l[palimpsest_other] - .\n"                       \
    ".long %c[key] - .\n"                                    \
    ".long %c[flags]\n"                                      \
    ".popsection\n"

/* The relocation in the code has no effect, except that linkers which fold functions with identical code (--icf=all)
 * keep those of different keys apart. */
#if defined(__x86_64__)
/* TEST EAX, imm32 or JMP rel32: one byte differs. */
#define PALIMPSEST_BRANCH_CODE_                              \
    "2:\n"                                                   \
    ".if %c[falls]\n"                                        \
    ".byte 0xa9\n"                                           \
    ".else\n"                                                \
    ".byte 0xe9\n"                                           \
    ".endif\n"                                               \
    ".long %l[palimpsest_other] - 3f\n"                      \
    "3:\n"                                                   \
    ".reloc 2b, R_X86_64_NONE, %c[key]\n"
#define PALIMPSEST_SYMBOL_ "i"
#elif defined(__aarch64__)
#define PALIMPSEST_BRANCH_CODE_                              \
    "2:\n"                                                   \
    ".if %c[falls]\n"                                        \
    "nop\n"                                                  \
    ".else\n"                                                \
    "b %l[palimpsest_other]\n"                               \
    ".endif\n"                                               \
    ".reloc 2b, R_AARCH64_NONE, %c[key]\n"
/* GCC accepts no symbol for "i" in position-independent code. */
#define PALIMPSEST_SYMBOL_ "S"
#else
#error "static keys are for x86-64 and AArch64"
#endif

#define PALIMPSEST_BRANCH_BODY_(key_, inline_)                                                \
    __label__ palimpsest_other;                                                               \
    __asm__ goto(PALIMPSEST_BRANCH_CODE_ PALIMPSEST_SITE_                                     \
                 : /* no outputs */                                                           \
                 : [key] PALIMPSEST_SYMBOL_(&key_),                                           \
                   [falls] "i"(PALIMPSEST_STARTS_ON_(key_) == (inline_)),                     \
                   [flags] "i"(inline_)                                                       \
                 : "cc"                                                                       \
                 : palimpsest_other)

#if defined(__clang__) && defined(__cplusplus)
/* Before version 17, Clang takes every label of a function for a target of each of its branches, and refuses code that
 * has variables in between. So each branch has a function of its own. */
#define PALIMPSEST_BRANCH_(key_, inline_)                                                     \
    ([]() __attribute__((always_inline)) -> int {                                             \
        PALIMPSEST_BRANCH_BODY_(key_, inline_);                                               \
        return (inline_);                                                                     \
    palimpsest_other:                                                                         \
        return !(inline_);                                                                    \
    }())
#else
#define PALIMPSEST_BRANCH_(key_, inline_)                                                     \
    __extension__({                                                                           \
        __label__ palimpsest_done;                                                            \
        int palimpsest_taken = (inline_);                                                     \
        {                                                                                     \
            PALIMPSEST_BRANCH_BODY_(key_, inline_);                                           \
            goto palimpsest_done;                                                             \
        palimpsest_other:                                                                     \
            palimpsest_taken = !(inline_);                                                    \
        }                                                                                     \
    palimpsest_done:                                                                          \
        palimpsest_taken;                                                                     \
    })
#endif

/* Tells whether a key is on. `unlikely` puts the code for "on" out of line, `likely` that for "off"; both are right for
 * a key in either state. */
#define palimpsest_branch_unlikely(key) PALIMPSEST_BRANCH_(key, 0)
#define palimpsest_branch_likely(key) PALIMPSEST_BRANCH_(key, 1)

#endif
