/* Mistakes of a C program, each of which is an answer: pointers that are null or misaligned, code that is none, and, as
 * with the C library's allocator, frees of what is no block, which end the process. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "must.h"

#if defined(__x86_64__)
static const unsigned char seven[] = {0xb8, 7, 0, 0, 0}, nine[] = {0xb8, 9, 0, 0, 0};
static const unsigned char code[] = {0xb8, 7, 0, 0, 0, 0xc3};
__asm__(".pushsection .text\n.balign 16\nin_text:\n.byte 0xb8, 7, 0, 0, 0\nret\n.popsection\n");
#else
/* Of the few instructions that may change while they run: `nop`, before 7, or a branch to 9. */
static const unsigned char seven[] = {0x1f, 0x20, 3, 0xd5}, nine[] = {3, 0, 0, 0x14};
static const unsigned char code[] = {0xe0, 0, 0x80, 0x52, 0xc0, 0x03, 0x5f, 0xd6};
__asm__(".pushsection .text\n.balign 16\nin_text:\nnop\nmov w0, #7\nret\nmov w0, #9\nret\n.popsection\n");
#endif
int in_text(void) __attribute__((visibility("hidden")));

/* A place of 8 words, and pointers into it that no value of more than one byte may have. */
static size_t place[8];
#define ODD(type) ((type *)(void *)((char *)place + 1))
#define EACH_WRONG(call_of)                                 \
    do {                                                    \
        IS(INVALID, call_of(NULL));                         \
        SAYS("null");                                       \
        IS(INVALID, call_of((void *)((char *)place + 1)));  \
        SAYS("no multiple of");                             \
    } while (0)

static struct palimpsest_packs packs;
static struct palimpsest_staged staged;
static struct palimpsest_staged_data staged_data;
static struct palimpsest_alloc_request request = {.size = sizeof request, .code = {64, 16}};
static struct palimpsest_alloc_places places = {.size = sizeof places};

#define OPENS(out) palimpsest_packs_open(NULL, out)
#define LOADS(out) palimpsest_load(packs, NULL, code, sizeof code, 16, out)
#define STAGES_HANDLE(out) palimpsest_stage(packs, 16, 16, out, &address, &image)
#define STAGES_ADDRESS(out) palimpsest_stage(packs, 16, 16, &staged, out, &image)
#define STAGES_IMAGE(out) palimpsest_stage(packs, 16, 16, &staged, &address, out)
#define DATA_HANDLE(out) palimpsest_stage_data(packs, 0, 16, 16, out, &address, &image)
#define DATA_ADDRESS(out) palimpsest_stage_data(packs, 0, 16, 16, &staged_data, out, &image)
#define DATA_IMAGE(out) palimpsest_stage_data(packs, 0, 16, 16, &staged_data, &address, out)
#define FINALIZES(out) palimpsest_finalize(packs, &staged, 1, out)
#define FINALIZES_DATA(out) palimpsest_finalize_data(staged_data, out)
#define FINDS(out) palimpsest_program_at(code, out)
#define ALLOCATES(out) palimpsest_alloc_allocate(packs, &request, out, &places)
#define TAKES(out) palimpsest_snapshot_take(NULL, out)
#define IS_ON(out) palimpsest_key_is_on(NULL, out)
#define FORKS(out) palimpsest_fork(out)

static int pointers(void) {
    size_t address;
    void *image;
    IS(OK, palimpsest_packs_open(NULL, &packs));
    EACH_WRONG(OPENS);
    EACH_WRONG(LOADS);
    EACH_WRONG(STAGES_HANDLE);
    EACH_WRONG(STAGES_ADDRESS);
    EACH_WRONG(STAGES_IMAGE);
    EACH_WRONG(DATA_HANDLE);
    EACH_WRONG(DATA_ADDRESS);
    EACH_WRONG(DATA_IMAGE);
    EACH_WRONG(FINDS);
    EACH_WRONG(ALLOCATES);
    EACH_WRONG(TAKES);
    EACH_WRONG(IS_ON);
    EACH_WRONG(FORKS);
    IS(OK, palimpsest_stage(packs, 16, 16, &staged, &address, &image));
    EACH_WRONG(FINALIZES);
    IS(OK, palimpsest_stage_data(packs, 0, 16, 16, &staged_data, &address, &image));
    EACH_WRONG(FINALIZES_DATA);
    /* What they name is as good as before. */
    IS(OK, palimpsest_staged_drop(staged));
    IS(OK, palimpsest_staged_data_drop(staged_data));

    /* These may be null, and misaligned they are refused before anything is done. */
    struct palimpsest_program program;
    IS(OK, palimpsest_load(packs, NULL, code, sizeof code, 16, &program));
    IS(OK, palimpsest_program_entry(program, NULL, NULL));
    IS(INVALID, palimpsest_program_entry(program, ODD(const void *), NULL));
    IS(INVALID, palimpsest_program_entry(program, NULL, ODD(size_t)));
    IS(OK, palimpsest_packs_reclaim(packs, NULL));
    IS(INVALID, palimpsest_packs_reclaim(packs, ODD(size_t)));
    IS(INVALID, palimpsest_keys_set("*", 1, ODD(size_t)));
    IS(INVALID, palimpsest_keys_set(NULL, 1, NULL));
    struct palimpsest_alloc alloc;
    IS(OK, palimpsest_alloc_allocate(packs, &request, &alloc, &places));
    IS(INVALID, palimpsest_alloc_finalize(packs, ODD(struct palimpsest_alloc), 1));
    IS(OK, palimpsest_alloc_finalize(packs, &alloc, 1));
    IS(INVALID, palimpsest_alloc_release(packs, &places.code.address, 1, ODD(size_t)));
    IS(INVALID, palimpsest_alloc_release(packs, ODD(size_t), 1, NULL));
    IS(OK, palimpsest_alloc_release(packs, &places.code.address, 1, NULL));
    IS(STALE, palimpsest_alloc_release(packs, &places.code.address, 1, NULL));

    /* Structures that say how long they are. */
    place[0] = sizeof place;
    IS(INVALID, palimpsest_packs_open(ODD(struct palimpsest_packs_options), &packs));
    SAYS("aligned");
    struct palimpsest_packs_options never_set = {.size = SIZE_MAX};
    IS(INVALID, palimpsest_packs_open(&never_set, &packs));
    SAYS("set it to the structure's sizeof");
    IS(INVALID, palimpsest_packs_get_stats(packs, NULL));
    IS(INVALID, palimpsest_packs_get_stats(packs, ODD(struct palimpsest_packs_stats)));
    IS(INVALID, palimpsest_lookup(packs, code, NULL));
    IS(OK, palimpsest_program_entry(program, (const void **)(void *)&place[1], NULL));
    const void *entry = (const void *)place[1];
    IS(INVALID, palimpsest_lookup(packs, entry, ODD(struct palimpsest_found)));
    IS(INVALID, palimpsest_alloc_query(packs, 0, NULL));
    IS(INVALID, palimpsest_alloc_allocate(packs, NULL, &alloc, &places));
    IS(INVALID, palimpsest_alloc_allocate(packs, ODD(struct palimpsest_alloc_request), &alloc, &places));
    IS(INVALID, palimpsest_alloc_allocate(packs, &request, &alloc, NULL));
    IS(INVALID, palimpsest_alloc_allocate(packs, &request, &alloc, ODD(struct palimpsest_alloc_places)));
    IS(INVALID, palimpsest_freeze(ODD(struct palimpsest_freeze_options), NULL));
    IS(INVALID, palimpsest_freeze(NULL, ODD(struct palimpsest_freeze_report)));
    IS(INVALID, palimpsest_survey(NULL, NULL));
    IS(INVALID, palimpsest_survey(NULL, ODD(struct palimpsest_freeze_report)));
    IS(INVALID, palimpsest_get_fork_status(NULL));
    IS(INVALID, palimpsest_get_fork_status(ODD(struct palimpsest_fork_status)));
    IS(INVALID, palimpsest_freeze_slice(ODD(struct palimpsest_freeze_progress)));
    IS(INVALID, palimpsest_freeze_while(NULL, NULL, ODD(struct palimpsest_freeze_progress)));
    IS(INVALID, palimpsest_freeze_get_progress(NULL));
    IS(INVALID, palimpsest_freeze_get_progress(ODD(struct palimpsest_freeze_progress)));
    IS(INVALID, palimpsest_next_slice(NULL));
    IS(INVALID, palimpsest_next_slice(ODD(uint64_t)));
    IS(INVALID, palimpsest_report_get_range(0, NULL));
    IS(INVALID, palimpsest_report_get_range(0, ODD(struct palimpsest_report_range)));
    MUST(palimpsest_report_text()[0] == 0);
    MUST(palimpsest_frozen_bytes() == 0);
    IS(OK, palimpsest_program_release(program));
    IS(OK, palimpsest_packs_close(packs));
    return 0;
}

/* Snapshots, whose answers go to the stack of the caller. */
static size_t returns(void *argument) { return (size_t)argument; }

static size_t body(void *argument, uint64_t number, size_t value, const struct palimpsest_restored *restored) {
    (void)number, (void)value, (void)restored;
    return (size_t)argument;
}

static int snapshots(void) {
    const size_t len = 1 << 16;
    char *memory = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(memory != MAP_FAILED);
    const struct palimpsest_range range = {memory, len};
    struct palimpsest_snapshot_options options = {.size = sizeof options, .ranges = &range, .range_count = 1};
    struct palimpsest_snapshot snapshot;
    IS(INVALID, palimpsest_snapshot_take(ODD(struct palimpsest_snapshot_options), &snapshot));
    options.ranges = ODD(struct palimpsest_range);
    IS(INVALID, palimpsest_snapshot_take(&options, &snapshot));
    options.ranges = &range;
    IS(OK, palimpsest_snapshot_take(&options, &snapshot));
    size_t value = 1;
    int is_abandoned;
    IS(INVALID, palimpsest_snapshot_restore(snapshot, ODD(struct palimpsest_restored)));
    IS(INVALID, palimpsest_snapshot_run(snapshot, 0, returns, NULL, ODD(size_t), &is_abandoned, NULL));
    IS(INVALID, palimpsest_snapshot_run(snapshot, 0, returns, NULL, &value, ODD(int), NULL));
    IS(INVALID, palimpsest_snapshot_run(snapshot, 0, returns, NULL, &value, NULL, ODD(struct palimpsest_restored)));
    IS(INVALID, palimpsest_snapshot_rounds(&options, 0, body, NULL, ODD(size_t)));
    IS(INVALID, palimpsest_snapshot_get_extent(snapshot, ODD(struct palimpsest_snapshot_extent)));
    IS(INVALID, palimpsest_snapshot_not_taken(snapshot, 0, ODD(struct palimpsest_not_taken)));
    MUST(value == 1);
    IS(OK, palimpsest_snapshot_run(snapshot, 0, returns, (void *)5, &value, NULL, NULL));
    MUST(value == 5);
    IS(OK, palimpsest_snapshot_drop(snapshot));
    IS(STALE, palimpsest_snapshot_drop(snapshot));
    return 0;
}

/* A site in the text of this program is changed, and one that is no code is refused before anything is. */
static int text(void) {
    const char *start = (const char *)(size_t)&in_text;
    const struct palimpsest_program none = {0};
    struct palimpsest_applied applied = {.size = sizeof applied};
    MUST(in_text() == 7);
    long page = sysconf(_SC_PAGESIZE);
    char *memory = mmap(NULL, 2 * page, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(memory != MAP_FAILED && munmap(memory + page, page) == 0);
    char *hidden = mmap(NULL, page, PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(hidden != MAP_FAILED);
    const void *wrong[] = {NULL, (void *)8, place, &none, memory + page, memory + page - 2, hidden, (void *)-2};
    for (size_t index = 0; index < sizeof wrong / sizeof *wrong; index++) {
        struct palimpsest_site sites[] = {{none, start, seven, nine, sizeof seven},
                                          {none, wrong[index], seven, nine, sizeof seven}};
        IS(INVALID, palimpsest_poke(sites, 2, &applied));
        MUST(in_text() == 7);
    }
    SAYS("beyond all addresses");
    struct palimpsest_site site = {none, start, seven, nine, sizeof seven};
    IS(OK, palimpsest_poke(&site, 1, &applied));
    MUST(applied.sites == 1 && in_text() == 9);
    IS(CHANGED, palimpsest_poke(&site, 1, NULL));
    struct palimpsest_site odd[2];
    memset(odd, 0, sizeof odd);
    IS(INVALID, palimpsest_poke((struct palimpsest_site *)(void *)((char *)odd + 1), 1, NULL));
    IS(INVALID, palimpsest_poke(NULL, 1, NULL));
    IS(INVALID, palimpsest_poke(&site, SIZE_MAX, NULL));
    return 0;
}

/* Frees in a child, which must end by SIGABRT and say why. */
static int ends(void (*wrong)(char *), const char *why) {
    int ways[2];
    MUST(pipe(ways) == 0);
    char *block = palimpsest_arena_malloc(100);
    MUST(block != NULL);
    pid_t child = fork();
    MUST(child >= 0);
    if (child == 0) {
        dup2(ways[1], STDERR_FILENO);
        wrong(block);
        _exit(0);
    }
    close(ways[1]);
    char said[256];
    size_t len = 0;
    for (ssize_t got = 1; got > 0; len += got > 0 ? (size_t)got : 0) {
        got = read(ways[0], said + len, sizeof said - 1 - len);
    }
    said[len] = 0;
    close(ways[0]);
    int status;
    MUST(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    if (strstr(said, why) == NULL) {
        printf("said: %s\n", said);
        return 1;
    }
    palimpsest_arena_free(block);
    return 0;
}

static void twice(char *block) {
    palimpsest_arena_free(block);
    palimpsest_arena_free(block);
}

static void inside(char *block) { palimpsest_arena_free(block + 16); }

static void of_the_c_library(char *block) {
    (void)block;
    palimpsest_arena_free(malloc(100));
}

static void of_the_stack(char *block) { palimpsest_arena_free(&block); }

static void invented(char *block) {
    (void)block;
    palimpsest_arena_free((void *)64);
}

static void resized_after(char *block) {
    palimpsest_arena_free(block);
    (void)!palimpsest_arena_realloc(block, 5);
}

static void foreign_resized(char *block) {
    (void)block;
    (void)!palimpsest_arena_realloc(place, 5);
}

static int frees(void) {
    struct palimpsest_arena_stats stats = {.size = sizeof stats};
    MUST(palimpsest_arena_stats(&stats) == 0);
    size_t blocks = stats.blocks;
    errno = 0;
    MUST(palimpsest_arena_stats(NULL) == -1 && errno == EINVAL);
    errno = 0;
    MUST(palimpsest_arena_stats(ODD(struct palimpsest_arena_stats)) == -1 && errno == EINVAL);
    palimpsest_arena_free(NULL);
    MUST(palimpsest_arena_usable_size(NULL) == 0);
    const char *frees_or = "palimpsest: arena: the program frees or resizes ";
    if (ends(twice, frees_or) || ends(inside, frees_or) || ends(of_the_c_library, frees_or) ||
        ends(of_the_stack, frees_or) || ends(invented, frees_or) || ends(resized_after, frees_or) ||
        ends(foreign_resized, frees_or)) {
        return 1;
    }
    MUST(palimpsest_arena_stats(&stats) == 0 && stats.blocks == blocks);
    return 0;
}

int main(void) { return pointers() || snapshots() || text() || frees(); }
