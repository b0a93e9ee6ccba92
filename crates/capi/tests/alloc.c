/* A C program that links code with its data by addresses, as the linker of a compiler does, and mistakes. */
#define _GNU_SOURCE
#include <palimpsest.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define MUST(condition)                                                                          \
    do {                                                                                         \
        if (!(condition)) {                                                                      \
            printf("line %d: %s is false: %s\n", __LINE__, #condition, palimpsest_error_message()); \
            return 1;                                                                            \
        }                                                                                        \
    } while (0)
#define IS(expected, call) MUST((call) == PALIMPSEST_##expected)
#define SAYS(text) MUST(strstr(palimpsest_error_message(), text) != NULL)

typedef int (*function)(void);

/* Writes a function that adds one to the number at `counter` and returns that at `number`; how long it is. */
static size_t links(unsigned char *at, uintptr_t runs_at, uintptr_t number, uintptr_t counter) {
#if defined(__x86_64__)
    const unsigned char code[] = {0xff, 0x05, 0, 0, 0, 0, 0x8b, 0x05, 0, 0, 0, 0, 0xc3};
    int32_t to_counter = (int32_t)(counter - (runs_at + 6)), to_number = (int32_t)(number - (runs_at + 12));
    memcpy(at, code, sizeof code);
    memcpy(at + 2, &to_counter, 4);
    memcpy(at + 8, &to_number, 4);
    return sizeof code;
#else
    /* adrp x1, counter; add x1, x1, low; ldr w0, [x1]; add w0, w0, 1; str w0, [x1]; adrp x1, number; add; ldr; ret */
    uint32_t code[9], n = 0;
    uintptr_t to[2] = {counter, number};
    for (int i = 0; i < 2; i++) {
        int64_t pages = (int64_t)(to[i] >> 12) - (int64_t)((runs_at + 4 * n) >> 12);
        code[n++] = 0x90000001 | (uint32_t)(pages & 3) << 29 | (uint32_t)(pages >> 2 & 0x7ffff) << 5;
        code[n++] = 0x91000021 | (uint32_t)(to[i] & 0xfff) << 10;
        code[n++] = 0xb9400020;
        if (i == 0) {
            code[n++] = 0x11000400;
            code[n++] = 0xb9000020;
        }
    }
    code[n++] = 0xd65f03c0;
    memcpy(at, code, 4 * n);
    return 4 * n;
#endif
}

static int calls(uintptr_t address) {
    function call;
    memcpy(&call, &address, sizeof call);
    return call();
}

static struct palimpsest_alloc_request request(int in_place) {
    struct palimpsest_alloc_request wanted = {.size = sizeof wanted, .in_place = in_place};
    wanted.code = (struct palimpsest_alloc_part){200, 16};
    wanted.read_only = (struct palimpsest_alloc_part){100, 64};
    wanted.read_write = (struct palimpsest_alloc_part){8, 8};
    return wanted;
}

struct thread {
    struct palimpsest_packs packs;
    uintptr_t address;
    enum palimpsest_result result;
};

static void *releases(void *context) {
    struct thread *thread = context;
    thread->result = palimpsest_alloc_release(thread->packs, &thread->address, 1, NULL);
    return NULL;
}

static int allocations(int in_place) {
    struct palimpsest_packs packs;
    IS(OK, palimpsest_packs_open(NULL, &packs));
    struct palimpsest_alloc_request wanted = request(in_place);
    struct palimpsest_alloc allocs[10];
    struct palimpsest_alloc_places places[10];
    for (int i = 0; i < 10; i++) {
        places[i].size = sizeof places[i];
        enum palimpsest_result result = palimpsest_alloc_allocate(packs, &wanted, &allocs[i], &places[i]);
        if (result == PALIMPSEST_REFUSED && in_place) {
            printf("skipped: %s\n", palimpsest_error_message());
            return palimpsest_packs_close(packs) != PALIMPSEST_OK;
        }
        MUST(result == PALIMPSEST_OK);
        MUST(places[i].read_only.address % 64 == 0 && places[i].code.len == 200);
        *(int *)places[i].read_only.working = 40 + i;
        const struct palimpsest_alloc_places *at = &places[i];
        size_t len = links(at->code.working, at->code.address, at->read_only.address, at->read_write.address);
        IS(OK, palimpsest_alloc_shrink(allocs[i], PALIMPSEST_CODE, len));
        IS(INVALID, palimpsest_alloc_shrink(allocs[i], PALIMPSEST_CODE, 200));
        SAYS("cannot have 200");
        IS(OK, palimpsest_alloc_set_name(allocs[i], "linked"));
        struct palimpsest_function inside = {"inner", 4, len - 4};
        IS(OK, palimpsest_alloc_set_functions(allocs[i], &inside, 1));
        inside.len += 1;
        IS(INVALID, palimpsest_alloc_set_functions(allocs[i], &inside, 1));
        SAYS("`inner`");
        inside.offset = SIZE_MAX;
        IS(INVALID, palimpsest_alloc_set_functions(allocs[i], &inside, 1));
        IS(INVALID, palimpsest_alloc_set_functions(allocs[i], NULL, 1));
    }
    struct palimpsest_alloc_found found = {.size = sizeof found};
    IS(NOT_FOUND, palimpsest_alloc_query(packs, places[0].code.address, &found));
    /* A handle that is listed twice, and one that is stale, cost the others nothing. */
    struct palimpsest_alloc twice[2] = {allocs[0], allocs[0]};
    IS(INVALID, palimpsest_alloc_finalize(packs, twice, 2));
    IS(OK, palimpsest_alloc_drop(allocs[9]));
    IS(STALE, palimpsest_alloc_finalize(packs, allocs, 10));
    IS(OK, palimpsest_alloc_finalize(packs, allocs, 9));
    IS(STALE, palimpsest_alloc_finalize(packs, allocs, 1));
    IS(STALE, palimpsest_alloc_shrink(allocs[0], PALIMPSEST_CODE, 1));

    uintptr_t release[9];
    for (int i = 0; i < 9; i++) {
        MUST(calls(places[i].code.address) == 40 + i && calls(places[i].code.address) == 40 + i);
        MUST(*(int *)places[i].read_write.address == 2);
        IS(OK, palimpsest_alloc_query(packs, places[i].read_only.address + 3, &found));
        MUST(found.part == PALIMPSEST_READ_ONLY && found.state == 0);
        MUST(found.code.start == places[i].code.address && found.code.len < 200);
        MUST(found.read_write.start == places[i].read_write.address && found.read_write.len == 8);
        release[i] = i % 2 ? places[i].code.address : places[i].read_write.address;
    }

    /* A child runs what it inherits; what it releases is gone for the child alone. */
    pid_t child = fork();
    if (child == 0) {
        int is_right = calls(places[0].code.address) == 40 &&
                       palimpsest_alloc_release(packs, release, 9, NULL) == PALIMPSEST_OK &&
                       palimpsest_alloc_release(packs, release, 1, NULL) == PALIMPSEST_STALE &&
                       calls(places[0].code.address) == 40 &&
                       palimpsest_alloc_allocate(packs, &wanted, &allocs[0], &places[0]) == PALIMPSEST_OK &&
                       palimpsest_alloc_finalize(packs, allocs, 1) == PALIMPSEST_OK;
        _exit(is_right ? 0 : 1);
    }
    int status;
    MUST(waitpid(child, &status, 0) == child && status == 0);

    uintptr_t inside = places[0].code.address + 4;
    size_t released = 99;
    IS(INVALID, palimpsest_alloc_release(packs, &inside, 1, &released));
    MUST(released == 0);
    SAYS("is inside what begins at");

    /* Of two threads that release the same, one does. */
    struct thread threads[2];
    pthread_t ids[2];
    for (int i = 0; i < 2; i++) {
        threads[i] = (struct thread){packs, release[0], PALIMPSEST_PANIC};
        MUST(pthread_create(&ids[i], NULL, releases, &threads[i]) == 0);
    }
    for (int i = 0; i < 2; i++) {
        MUST(pthread_join(ids[i], NULL) == 0);
    }
    MUST((threads[0].result == PALIMPSEST_OK) != (threads[1].result == PALIMPSEST_OK));
    MUST(threads[0].result == PALIMPSEST_STALE || threads[1].result == PALIMPSEST_STALE);
    IS(OK, palimpsest_alloc_query(packs, places[0].code.address, &found));
    MUST(found.state == 1);
    IS(OK, palimpsest_pin(packs));
    IS(OK, palimpsest_alloc_release(packs, release + 1, 8, &released));
    MUST(released == 8);
    IS(STALE, palimpsest_alloc_release(packs, release + 1, 8, &released));
    /* What is released runs as long as somebody is pinned. */
    IS(OK, palimpsest_packs_reclaim(packs, NULL));
    MUST(calls(places[1].code.address) == 41);
    IS(OK, palimpsest_unpin(packs));
    IS(OK, palimpsest_packs_reclaim(packs, NULL));
    IS(NOT_FOUND, palimpsest_alloc_query(packs, places[1].code.address, &found));
    IS(NOT_FOUND, palimpsest_alloc_release(packs, release + 1, 1, NULL));
    struct palimpsest_packs_stats stats = {.size = sizeof stats};
    IS(OK, palimpsest_packs_get_stats(packs, &stats));
    MUST(stats.programs == 0 && stats.used_bytes == 0);
    IS(OK, palimpsest_packs_close(packs));
    return 0;
}

static int mistakes(void) {
    struct palimpsest_packs_options options = {.size = sizeof options};
    options.write_view = PALIMPSEST_WRITE_VIEW_DURING_COPIES;
    struct palimpsest_packs packs;
    IS(OK, palimpsest_packs_open(&options, &packs));
    struct palimpsest_alloc_request wanted = request(1);
    struct palimpsest_alloc alloc;
    struct palimpsest_alloc_places places = {.size = sizeof places};
    IS(REFUSED, palimpsest_alloc_allocate(packs, &wanted, &alloc, &places));
    SAYS("WriteView::Standing");
    wanted.in_place = 0;
    IS(INVALID, palimpsest_alloc_allocate(packs, NULL, &alloc, &places));
    IS(INVALID, palimpsest_alloc_allocate(packs, &wanted, NULL, &places));
    IS(INVALID, palimpsest_alloc_allocate(packs, &wanted, &alloc, NULL));
    places.size = 0;
    IS(INVALID, palimpsest_alloc_allocate(packs, &wanted, &alloc, &places));
    places.size = sizeof places;
    wanted.in_place = 2;
    IS(INVALID, palimpsest_alloc_allocate(packs, &wanted, &alloc, &places));
    wanted.in_place = 0;
    wanted.read_only.align = 3;
    IS(INVALID, palimpsest_alloc_allocate(packs, &wanted, &alloc, &places));
    SAYS("ReadOnly");
    wanted.read_only.align = 8;
    wanted.code.len = (size_t)1 << 40;
    IS(INVALID, palimpsest_alloc_allocate(packs, &wanted, &alloc, &places));
    struct palimpsest_alloc_request nothing = {.size = sizeof nothing};
    IS(INVALID, palimpsest_alloc_allocate(packs, &nothing, &alloc, &places));
    SAYS("0 bytes");
    wanted.code.len = 0;
    IS(OK, palimpsest_alloc_allocate(packs, &wanted, &alloc, &places));
    MUST(places.code.address == 0 && places.code.working == NULL && places.read_only.working != NULL);
    IS(INVALID, palimpsest_alloc_shrink(alloc, PALIMPSEST_CODE, 1));
    IS(INVALID, palimpsest_alloc_shrink(alloc, PALIMPSEST_READ_ONLY, 0));
    IS(INVALID, palimpsest_alloc_shrink(alloc, 3, 1));
    IS(INVALID, palimpsest_alloc_shrink(alloc, -1, 1));
    IS(INVALID, palimpsest_alloc_finalize(packs, NULL, 1));
    IS(OK, palimpsest_alloc_finalize(packs, NULL, 0));
    IS(OK, palimpsest_alloc_finalize(packs, &alloc, 1));
    IS(INVALID, palimpsest_alloc_query(packs, places.read_only.address, NULL));
    IS(OK, palimpsest_alloc_release(packs, &places.read_only.address, 1, NULL));
    uintptr_t nowhere = 8;
    IS(NOT_FOUND, palimpsest_alloc_release(packs, &nowhere, 1, NULL));
    IS(INVALID, palimpsest_alloc_release(packs, NULL, 1, NULL));
    /* Programs of other functions are held by their handles. */
    struct palimpsest_program program;
    IS(OK, palimpsest_load(packs, "held", "\xc3\xc3\xc3\xc3", 4, 16, &program));
    const void *entry;
    IS(OK, palimpsest_program_entry(program, &entry, NULL));
    nowhere = (uintptr_t)entry;
    IS(INVALID, palimpsest_alloc_release(packs, &nowhere, 1, NULL));
    SAYS("held by a handle");
    struct palimpsest_alloc_found found = {.size = sizeof found};
    IS(NOT_FOUND, palimpsest_alloc_query(packs, nowhere, &found));
    IS(OK, palimpsest_packs_close(packs));
    IS(STALE, palimpsest_alloc_allocate(packs, &wanted, &alloc, &places));
    return 0;
}

int main(void) {
    return allocations(0) || allocations(1) || mistakes();
}
