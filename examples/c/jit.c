/* Loads a function into a pack, calls it, changes it while it may be running, and releases it. */
#include <palimpsest.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A function that returns 7, and the instruction that makes it return 9. */
#if defined(__x86_64__)
static const unsigned char code[] = {0xb8, 7, 0, 0, 0, 0xc3}, seven[] = {0xb8, 7, 0, 0, 0}, nine[] = {0xb8, 9, 0, 0, 0};
#else
static const unsigned char code[] = {0xe0, 0x00, 0x80, 0x52, 0xc0, 0x03, 0x5f, 0xd6};
static const unsigned char seven[] = {0xe0, 0x00, 0x80, 0x52}, nine[] = {0x20, 0x01, 0x80, 0x52};
#endif

static void check(enum palimpsest_result result) {
    if (result != PALIMPSEST_OK) {
        fprintf(stderr, "%s\n", palimpsest_error_message());
        exit(1);
    }
}

int main(void) {
    // ANCHOR: jit
    struct palimpsest_packs packs;
    check(palimpsest_packs_open(NULL, &packs));

    struct palimpsest_program program;
    check(palimpsest_load(packs, "answer", code, sizeof code, 16, &program));

    const void *entry;
    check(palimpsest_program_entry(program, &entry, NULL));
    int (*answer)(void);
    memcpy(&answer, &entry, sizeof answer);
    printf("%d\n", answer());

    struct palimpsest_site site = {program, entry, seven, nine, sizeof seven};
    struct palimpsest_applied applied = {.size = sizeof applied};
    check(palimpsest_poke(&site, 1, &applied));
    printf("%d\n", answer());

    check(palimpsest_program_release(program));
    check(palimpsest_packs_close(packs));
    // ANCHOR_END: jit
    return 0;
}
