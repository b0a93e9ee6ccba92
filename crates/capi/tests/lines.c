/* A C program whose code tells its lines: a debugger shows them, and a dump has them. `tools/mod.rs` runs it under gdb.
 * With an argument it asks for these observers. */
#include <stdlib.h>

#include "must.h"

/* Two functions: one calls what it is given with what follows, the other calls what it is given. */
#if defined(__x86_64__)
/* push rbp; mov rbp, rsp; mov rax, rdi; mov rdi, rsi; call rax; pop rbp; ret */
static const unsigned char outer[] = {0x55, 0x48, 0x89, 0xe5, 0x48, 0x89, 0xf8, 0x48,
                                      0x89, 0xf7, 0xff, 0xd0, 0x5d, 0xc3, 0xcc, 0xcc};
/* push rbp; mov rbp, rsp; call rdi; pop rbp; ret */
static const unsigned char inner[] = {0x55, 0x48, 0x89, 0xe5, 0xff, 0xd7, 0x5d, 0xc3};
enum { OUTER_CALLS = 10, OUTER_RETURNS = 12, INNER_CALLS = 4, INNER_RETURNS = 6 };
#else
/* stp x29, x30, [sp, #-16]!; mov x29, sp; mov x2, x0; mov x0, x1; blr x2; ldp x29, x30, [sp], #16; ret; brk */
static const unsigned char outer[] = {0xfd, 0x7b, 0xbf, 0xa9, 0xfd, 0x03, 0, 0x91, 0xe2, 0x03, 0,
                                      0xaa, 0xe0, 0x03, 1, 0xaa, 0x40, 0, 0x3f, 0xd6, 0xfd, 0x7b,
                                      0xc1, 0xa8, 0xc0, 0x03, 0x5f, 0xd6, 0, 0, 0x20, 0xd4};
/* stp x29, x30, [sp, #-16]!; mov x29, sp; blr x0; ldp x29, x30, [sp], #16; ret */
static const unsigned char inner[] = {0xfd, 0x7b, 0xbf, 0xa9, 0xfd, 0x03, 0,    0x91, 0,    0,
                                      0x3f, 0xd6, 0xfd, 0x7b, 0xc1, 0xa8, 0xc0, 0x03, 0x5f, 0xd6};
enum { OUTER_CALLS = 16, OUTER_RETURNS = 20, INNER_CALLS = 8, INNER_RETURNS = 12 };
#endif

typedef void (*callee)(void);

/* Where gdb stops. */
void lines_stop(void);
__attribute__((noinline)) void lines_stop(void) { __asm__ volatile(""); }

static void calls(size_t address, callee first, callee second) {
    void (*function)(callee, callee);
    memcpy(&function, &address, sizeof function);
    function(first, second);
}

/* A program, by a handle of its own. */
static int a_program(struct palimpsest_packs packs) {
    const struct palimpsest_line lines[] = {
        {"a_program.made", 0, 10, 0, 0}, {NULL, INNER_CALLS, 99, 0, 0},     {"a_program.made", INNER_CALLS, 11, 7, 0},
        {"a_program.made", INNER_RETURNS, 12, 0, 0}, {"", INNER_RETURNS + 1, 0, 0, 0},
    };
    struct palimpsest_staged staged;
    size_t address;
    void *image;
    IS(OK, palimpsest_stage(packs, sizeof inner, 16, &staged, &address, &image));
    memcpy(image, inner, sizeof inner);
    IS(OK, palimpsest_staged_set_name(staged, "made"));
    IS(OK, palimpsest_staged_set_lines(staged, lines, 5));

    /* Mistakes change nothing. */
    struct palimpsest_line wrong[] = {{"x", 4, 1, 0, 0}, {"x", 3, 2, 0, 0}};
    IS(INVALID, palimpsest_staged_set_lines(staged, wrong, 2));
    SAYS("sort it");
    wrong[1].offset = sizeof inner;
    IS(INVALID, palimpsest_staged_set_lines(staged, wrong, 2));
    SAYS("the code has");
    wrong[1].offset = UINT32_MAX;
    IS(INVALID, palimpsest_staged_set_lines(staged, wrong, 2));
    wrong[1] = (struct palimpsest_line){"x", 4, 1, 0, 1};
    IS(INVALID, palimpsest_staged_set_lines(staged, wrong, 2));
    SAYS("reserved");
    /* Names are any bytes; the next list replaces this one. */
    wrong[1] = (struct palimpsest_line){"\xff", 4, 1, 0, 0};
    IS(OK, palimpsest_staged_set_lines(staged, wrong, 2));
    IS(OK, palimpsest_staged_set_lines(staged, lines, 5));
    IS(INVALID, palimpsest_staged_set_lines(staged, NULL, 1));
    IS(INVALID, palimpsest_staged_set_lines(staged, lines, SIZE_MAX));
    IS(INVALID, palimpsest_staged_set_lines(staged, (const struct palimpsest_line *)(size_t)1, 1));

    struct palimpsest_program program;
    IS(OK, palimpsest_finalize(packs, &staged, 1, &program));
    IS(STALE, palimpsest_staged_set_lines(staged, lines, 5));
    calls(address, lines_stop, NULL);
    IS(OK, palimpsest_program_release(program));
    return 0;
}

/* Two functions of one allocation, as a linker of a compiler makes them. */
static int an_allocation(struct palimpsest_packs packs) {
    const struct palimpsest_alloc_request request = {
        .size = sizeof request, .code = {sizeof outer + sizeof inner + 64, 16}, .read_only = {8, 8}};
    const size_t len = sizeof outer + sizeof inner;
    const struct palimpsest_function functions[] = {{"outer_made", 0, sizeof outer},
                                                    {"inner_made", sizeof outer, sizeof inner}};
    const struct palimpsest_line lines[] = {
        {"outer.made", 0, 20, 0, 0},
        {"outer.made", OUTER_CALLS, 21, 0, 0},
        {"outer.made", OUTER_RETURNS, 22, 0, 0},
        {"inner.made", sizeof outer, 30, 0, 0},
        {"inner.made", sizeof outer + INNER_CALLS, 31, 3, 0},
        {"inner.made", sizeof outer + INNER_RETURNS, 32, 0, 0},
        {"cut_off.made", sizeof outer + sizeof inner, 40, 0, 0},
    };
    struct palimpsest_alloc alloc;
    struct palimpsest_alloc_places places = {.size = sizeof places};
    IS(OK, palimpsest_alloc_allocate(packs, &request, &alloc, &places));
    memcpy(places.code.working, outer, sizeof outer);
    memcpy((char *)places.code.working + sizeof outer, inner, sizeof inner);
    IS(OK, palimpsest_alloc_set_name(alloc, "an_allocation"));
    IS(OK, palimpsest_alloc_set_lines(alloc, lines, 7));
    IS(OK, palimpsest_alloc_shrink(alloc, PALIMPSEST_CODE, len));
    IS(INVALID, palimpsest_alloc_set_lines(alloc, lines, 7));
    SAYS("line 6");
    IS(OK, palimpsest_alloc_set_functions(alloc, functions, 2));
    IS(INVALID, palimpsest_alloc_set_lines(alloc, NULL, 1));
    IS(OK, palimpsest_alloc_finalize(packs, &alloc, 1));
    IS(STALE, palimpsest_alloc_set_lines(alloc, lines, 1));
    callee second;
    const size_t at = places.code.address + sizeof outer;
    memcpy(&second, &at, sizeof second);
    calls(places.code.address, second, lines_stop);
    IS(OK, palimpsest_alloc_release(packs, &places.code.address, 1, NULL));

    /* Data has no lines. */
    struct palimpsest_alloc_request data = {.size = sizeof data, .read_only = {8, 8}};
    IS(OK, palimpsest_alloc_allocate(packs, &data, &alloc, &places));
    IS(INVALID, palimpsest_alloc_set_lines(alloc, lines, 1));
    SAYS("0 bytes");
    IS(OK, palimpsest_alloc_set_lines(alloc, NULL, 0));
    IS(OK, palimpsest_alloc_drop(alloc));
    return 0;
}

int main(int count, char **arguments) {
    (void)arguments;
    struct palimpsest_packs_options options = {.size = sizeof options};
    options.observers = count > 1 ? PALIMPSEST_GDB | PALIMPSEST_JIT_DUMP : 0;
    struct palimpsest_packs packs;
    IS(OK, palimpsest_packs_open(&options, &packs));
    if (a_program(packs) || an_allocation(packs)) {
        return 1;
    }
    struct palimpsest_packs_stats stats = {.size = sizeof stats};
    IS(OK, palimpsest_packs_get_stats(packs, &stats));
    MUST(stats.observer_errors == 0);
    IS(OK, palimpsest_packs_close(packs));
    return 0;
}
