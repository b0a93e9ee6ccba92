/* A C program with programs in packs, a site that is rewritten, static keys, and mistakes, which are errors. */
#define _GNU_SOURCE
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "must.h"

/* A function that returns a number, and the instruction that says which. */
#if defined(__x86_64__)
#define RETURNS(number) {0xb8, number, 0, 0, 0, 0xc3}
#define INSTRUCTION 5
#else
/* Of the few instructions that may change while they run: `nop`, before 7, or a branch to 9. */
#define PICK(number, nine, seven) ((number) == 9 ? (nine) : (seven))
#define FIRST(number) PICK(number, 3, 0x1f), PICK(number, 0, 0x20), PICK(number, 0, 3), PICK(number, 0x14, 0xd5)
#define RETURN 0xc0, 0x03, 0x5f, 0xd6
#define RETURNS(number) {FIRST(number), 0xe0, 0, 0x80, 0x52, RETURN, 0x20, 1, 0x80, 0x52, RETURN}
#define INSTRUCTION 4
#endif

typedef int (*function)(void);

/* As in a header that several files include. */
PALIMPSEST_KEY_DECLARE(off_at_first, 0);
PALIMPSEST_KEY(off_at_first, "capi.off", 0);
PALIMPSEST_KEY(unnamed, "not a name", 0);
PALIMPSEST_KEY(on_at_first, "capi.on", 1);

static int which(void) {
    return (palimpsest_branch_unlikely(off_at_first) ? 1 : 0) + (palimpsest_branch_likely(on_at_first) ? 2 : 0);
}

static int calls(struct palimpsest_program program) {
    const void *entry;
    size_t len;
    if (palimpsest_program_entry(program, &entry, &len) != PALIMPSEST_OK) {
        return -1;
    }
    function call;
    memcpy(&call, &entry, sizeof call);
    return call();
}

static int programs(void) {
    const unsigned char seven[] = RETURNS(7), nine[] = RETURNS(9);
    struct palimpsest_packs packs;
    IS(OK, palimpsest_packs_open(NULL, &packs));

    struct palimpsest_program program;
    IS(OK, palimpsest_load(packs, "seven", seven, sizeof seven, 16, &program));
    MUST(calls(program) == 7);

    struct palimpsest_staged staged[2];
    size_t address[2];
    for (int index = 0; index < 2; index++) {
        void *image;
        IS(OK, palimpsest_stage(packs, sizeof nine, 16, &staged[index], &address[index], &image));
        memcpy(image, nine, sizeof nine);
        IS(OK, palimpsest_staged_set_name(staged[index], "nine"));
    }
    struct palimpsest_program both[2];
    IS(OK, palimpsest_finalize(packs, staged, 2, both));
    MUST(calls(both[0]) == 9 && calls(both[1]) == 9);
    IS(STALE, palimpsest_staged_drop(staged[0]));

    const void *entry;
    IS(OK, palimpsest_program_entry(both[1], &entry, NULL));
    MUST((size_t)entry == address[1]);
    struct palimpsest_found found = {.size = sizeof found};
    IS(OK, palimpsest_lookup(packs, (const char *)entry + 2, &found));
    MUST(found.start == address[1] && found.len == sizeof nine && strcmp(found.name, "nine") == 0);
    IS(NOT_FOUND, palimpsest_lookup(packs, &found, &found));
    struct palimpsest_program same;
    IS(OK, palimpsest_program_at(entry, &same));
    MUST(same.handle == both[1].handle);

    struct palimpsest_site sites[2];
    for (int index = 0; index < 2; index++) {
        struct palimpsest_program one = index == 0 ? program : both[0];
        IS(OK, palimpsest_program_entry(one, &entry, NULL));
        sites[index] = (struct palimpsest_site){one, entry, index == 0 ? seven : nine, index == 0 ? nine : seven,
                                                INSTRUCTION};
    }
    struct palimpsest_applied applied = {.size = sizeof applied};
    IS(OK, palimpsest_poke(sites, 2, &applied));
    MUST(applied.sites == 2 && calls(program) == 9 && calls(both[0]) == 7 && calls(both[1]) == 9);
    struct palimpsest_applied unset = {0};
    struct palimpsest_site back = {program, sites[0].address, nine, seven, INSTRUCTION};
    IS(INVALID, palimpsest_poke(&back, 1, &unset));
    MUST(calls(program) == 9);
    sites[0].old_code = sites[0].new_code = NULL;
    IS(INVALID, palimpsest_poke(sites, 2, &applied));

    IS(OK, palimpsest_pin(packs));
    IS(OK, palimpsest_program_release(both[0]));
    struct palimpsest_packs_stats pinned = {.size = sizeof pinned};
    IS(OK, palimpsest_packs_get_stats(packs, &pinned));
    MUST(pinned.pinned_threads == 1);
    /* The child's own account counts no inherited pin, and the one that the child makes. */
    pid_t heir = fork();
    if (heir == 0) {
        IS(OK, palimpsest_pin(packs));
        IS(OK, palimpsest_packs_get_stats(packs, &pinned));
        MUST(pinned.pinned_threads == 1);
        _exit(0);
    }
    int end;
    MUST(waitpid(heir, &end, 0) == heir && end == 0);
    IS(OK, palimpsest_unpin(packs));
    IS(NOT_FOUND, palimpsest_unpin(packs));
    IS(STALE, palimpsest_program_release(both[0]));
    SAYS("released");
    IS(STALE, palimpsest_program_entry(both[0], &entry, NULL));
    size_t bytes;
    IS(OK, palimpsest_packs_reclaim(packs, &bytes));
    MUST(bytes > 0);
    struct palimpsest_packs_stats stats = {.size = sizeof stats};
    IS(OK, palimpsest_packs_get_stats(packs, &stats));
    MUST(stats.programs == 2 && stats.loads == 3 && stats.frees == 1);

    pid_t child;
    IS(OK, palimpsest_fork(&child));
    if (child == 0) {
        struct palimpsest_program own;
        MUST(calls(program) == 9);
        IS(OK, palimpsest_load(packs, NULL, seven, sizeof seven, 16, &own));
        MUST(calls(own) == 7);
        _exit(0);
    }
    int status;
    MUST(waitpid(child, &status, 0) == child && status == 0);

    IS(OK, palimpsest_packs_close(packs));
    IS(STALE, palimpsest_packs_close(packs));
    IS(STALE, palimpsest_pin(packs));
    /* Nor is it that of the packs in its place. */
    struct palimpsest_packs others;
    IS(OK, palimpsest_packs_open(NULL, &others));
    IS(STALE, palimpsest_pin(packs));
    IS(STALE, palimpsest_lookup(packs, entry, &found));
    IS(OK, palimpsest_packs_close(others));
    MUST(calls(program) == 9);
    IS(OK, palimpsest_program_release(program));
    IS(OK, palimpsest_program_release(both[1]));
    return 0;
}

static int mistakes(void) {
    const unsigned char code[] = RETURNS(1);
    struct palimpsest_packs packs = {0}, invented = {0x100000000};
    struct palimpsest_program program;
    IS(INVALID, palimpsest_packs_open(NULL, NULL));
    IS(STALE, palimpsest_load(packs, NULL, code, sizeof code, 16, &program));
    struct palimpsest_packs_options options = {.size = sizeof options, .backing = 9};
    IS(INVALID, palimpsest_packs_open(&options, &packs));
    SAYS("backing is 9");
    options = (struct palimpsest_packs_options){.size = 3};
    IS(INVALID, palimpsest_packs_open(&options, &packs));
    struct {
        struct palimpsest_packs_options known;
        int later;
    } newer = {{.size = sizeof newer}, 1};
    IS(INVALID, palimpsest_packs_open(&newer.known, &packs));
    newer.later = 0;
    IS(OK, palimpsest_packs_open(&newer.known, &packs));
    (void)invented;
    IS(INVALID, palimpsest_load(packs, NULL, NULL, 3, 16, &program));
    IS(INVALID, palimpsest_load(packs, NULL, code, 0, 16, &program));
    IS(INVALID, palimpsest_load(packs, NULL, code, sizeof code, 3, &program));
    SAYS("3");
    /* Names are any bytes. */
    IS(OK, palimpsest_load(packs, "\xff", code, sizeof code, 16, &program));
    IS(OK, palimpsest_program_release(program));
    IS(INVALID, palimpsest_load(packs, NULL, code, SIZE_MAX, 16, &program));
    IS(NOT_FOUND, palimpsest_program_at(code, &program));
    IS(OK, palimpsest_packs_close(packs));
    return 0;
}

static int keys(void) {
    MUST(which() == 2);
    IS(OK, palimpsest_key_set(&off_at_first, 1));
    MUST(which() == 3);
    IS(OK, palimpsest_key_set(&on_at_first, 0));
    MUST(which() == 1);
    size_t count = 0;
    IS(OK, palimpsest_keys_set("capi.*", 0, &count));
    MUST(which() == 0 && count == 1);
    IS(OK, palimpsest_key_enable(&on_at_first));
    int is_on = -1;
    IS(OK, palimpsest_key_is_on(&on_at_first, &is_on));
    MUST(which() == 2 && is_on == 1);
    IS(OK, palimpsest_key_disable(&on_at_first));
    IS(INVALID, palimpsest_key_disable(&on_at_first));
    IS(NOT_FOUND, palimpsest_keys_set("nothing.*", 1, NULL));
    IS(NOT_FOUND, palimpsest_keys_set("not*", 1, NULL));
    struct palimpsest_key foreign;
    IS(NOT_FOUND, palimpsest_key_set(&foreign, 1));
    return 0;
}

/* The number of the file of frozen memory that the byte at this address is shown from; 0 if it is not frozen. */
static unsigned long file_of(const char *at) {
    FILE *maps = fopen("/proc/self/maps", "r");
    unsigned long found = 0;
    char line[512];
    while (maps && fgets(line, sizeof line, maps)) {
        unsigned long start, end, file;
        if (sscanf(line, "%lx-%lx %*s %*s %*s %lu", &start, &end, &file) == 3 && start <= (uintptr_t)at &&
            (uintptr_t)at < end && strstr(line, "palimpsest-frozen"))
            found = file;
    }
    if (maps)
        fclose(maps);
    return found;
}

static int is_frozen(const char *at) {
    return file_of(at) != 0;
}

/* What the last report tells, range by range and in words, is what its figures tell. Fails on: frozen ranges
 * behind those that are not. */
static int reported(const struct palimpsest_freeze_report *report, const char *memory) {
    size_t frozen = 0, skipped = 0, index = 0;
    int is_there = 0;
    struct palimpsest_report_range range = {.size = sizeof range};
    for (; palimpsest_report_get_range(index, &range) == PALIMPSEST_OK; index++) {
        MUST(range.skip != PALIMPSEST_SKIP_NOT || skipped == 0);
        *(range.skip == PALIMPSEST_SKIP_NOT ? &frozen : &skipped) += range.bytes;
        is_there |= range.skip == PALIMPSEST_SKIP_NOT && range.start <= (uintptr_t)memory &&
                    (uintptr_t)memory < range.start + range.len;
    }
    SAYS("has no range");
    IS(NOT_FOUND, palimpsest_report_get_range(SIZE_MAX, &range));
    MUST(index == report->ranges && frozen == report->frozen && skipped == report->skipped && is_there);
    MUST(report->extent >= 2 << 20 && report->reserved == 0 && report->gathered == 0 && report->left_once_ns == 0);
    MUST(strstr(palimpsest_report_text(), "frozen") != NULL && strstr(palimpsest_report_text(), " kB") != NULL);
    return 0;
}

/* The reason for which a range at this address was left alone; -1 if there is none. */
static int skip_of(const char *memory) {
    struct palimpsest_report_range range = {.size = sizeof range};
    for (size_t index = 0; palimpsest_report_get_range(index, &range) == PALIMPSEST_OK; index++) {
        if (range.start <= (uintptr_t)memory && (uintptr_t)memory < range.start + range.len)
            return range.skip;
    }
    return -1;
}

/* Thaws a page with a protection key: it keeps the key. Fails on: a guard that is not told of it. */
static int keyed(char *at, size_t page) {
#ifdef SYS_pkey_alloc
    enum { DENIED = 1 };
    int key = (int)syscall(SYS_pkey_alloc, 0, 0), ends[2];
    if (key < 0) {
        printf("skipped: no protection keys here\n");
        return 0;
    }
    MUST(palimpsest_pkey_mprotect(at, page, PROT_READ | PROT_WRITE, key) == 0);
    IS(OK, palimpsest_thaw(at, page));
    MUST(!is_frozen(at) && *at == 6);
    /* The same key again, which now denies: the kernel may not read the page for this thread either. */
    MUST(syscall(SYS_pkey_free, key) == 0 && syscall(SYS_pkey_alloc, 0, DENIED) == key && pipe(ends) == 0);
    MUST(write(ends[1], at, 1) == -1 && errno == EFAULT);
    MUST(palimpsest_pkey_mprotect(at + page, page, PROT_READ | PROT_WRITE, key) == 0);
    IS(REFUSED, palimpsest_thaw(at + page, page));
    MUST(is_frozen(at + page) && palimpsest_pkey_mprotect(at + page, page, PROT_READ | PROT_WRITE, 0) == 0);
    MUST(at[page] == 6);
    MUST(palimpsest_pkey_mprotect(at, page, PROT_READ | PROT_WRITE, 0) == 0 && *at == 6);
    MUST(syscall(SYS_pkey_free, key) == 0);
    MUST(write(ends[1], at, 1) == 1 && close(ends[0]) == 0 && close(ends[1]) == 0);
#else
    (void)at, (void)page;
#endif
    return 0;
}

/* Locks parts of frozen memory, which thaws them. Fails on: a lock without a thaw before it. */
static int locking(char *memory, size_t length) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char *at = memory + 16 * page;
    MUST(palimpsest_may_be_frozen(at, 1) == 1 && palimpsest_may_be_frozen(at, 8 * page) == 1);
    if (palimpsest_mlock(at + 1, page - 1) != 0) {
        MUST(errno == ENOMEM || errno == EPERM || errno == EAGAIN);
        printf("skipped: no page may be locked\n");
    }
    MUST(!is_frozen(at) && is_frozen(at + page) && *at == 6);
    MUST(palimpsest_may_be_frozen(at, page + 1) == 1 && palimpsest_may_be_frozen(&page, 1) == 0);
    munlock(at, page);
    MUST(palimpsest_mlock((void *)~(page - 1), page) == -1);

    /* Whoever says that flags change has that memory left where it is. */
    at += 4 * page;
    const char *stays = at;
    palimpsest_changed(at, page);
    IS(REFUSED, palimpsest_thaw(at, page));
    IS(OK, palimpsest_thaw(at + page, page));
    MUST(is_frozen(at) && !is_frozen(at + page));

    at += 4 * page;
    MUST(palimpsest_pkey_mprotect(at, page, PROT_READ, -1) == 0);
    IS(OK, palimpsest_thaw(at, page));
    MUST(!is_frozen(at) && palimpsest_pkey_mprotect(at, page, PROT_READ, 99) == -1);
    /* A kernel without keys lacks the call. */
    MUST(errno == EINVAL || errno == ENOSYS);
    MUST(palimpsest_mprotect(at, page, PROT_READ | PROT_WRITE) == 0 && *at == 6);
    if (keyed(at + 4 * page, page)) {
        return 1;
    }
    /* Upwards, as far as memory that stays where it is. */
    IS(REFUSED, palimpsest_thaw(memory, length));
    MUST(!is_frozen(memory) && !is_frozen(stays - 1) && is_frozen(stays) && is_frozen(memory + length / 2));
    /* However far apart heaps are from what mmap gives. */
    IS(REFUSED, palimpsest_thaw(NULL, SIZE_MAX));
    IS(OK, palimpsest_thaw(NULL, (size_t)memory));
    MUST(palimpsest_mlockall(1 << 20) == -1 && errno == EINVAL && is_frozen(memory + length / 2));
    if (palimpsest_mlockall(MCL_CURRENT | MCL_ONFAULT) != 0) {
        MUST(errno == ENOMEM || errno == EPERM);
    }
    munlockall();
    MUST(is_frozen(stays) && is_frozen(memory + length / 2));
    MUST(memory[0] == 6 && *stays == 6 && memory[length / 2] == 6);
    return 0;
}

/* Thaws and forgets parts of frozen memory, and of no more than the pages that they touch. */
static int thawing(char *memory, size_t length) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char *last = memory + length - 1;
    MUST(is_frozen(memory) && is_frozen(last));
    /* Bytes of two pages. */
    IS(OK, palimpsest_thaw(memory + page - 1, 2));
    MUST(!is_frozen(memory) && !is_frozen(memory + page) && is_frozen(memory + 2 * page) && is_frozen(last));
    memset(last - 63, 0, 64);
    IS(OK, palimpsest_forget(last - 63, 64));
    MUST(!is_frozen(last) && *last == 0 && last[-64] == 6 && memory[0] == 6 && memory[page] == 6);
    return 0;
}

static int freezing(void) {
    struct palimpsest_freeze_options options = {.size = sizeof options, .answers = 1 << 20};
    struct palimpsest_freeze_report report = {.size = sizeof report};
    IS(INVALID, palimpsest_survey(&options, &report));
    options.answers = 0;
    /* Of which one has what is forgotten, and another what is written to. */
    options.extent = 2 << 20;
    /* No interpreter: linked statically, as for the guest. Its malloc discards nothing. */
    if (getauxval(AT_BASE) == 0) {
        IS(REFUSED, palimpsest_survey(&options, &report));
        SAYS("statically linked");
        options.answers = PALIMPSEST_RAW_ALLOCATOR;
    }
    MUST(palimpsest_report_text()[0] == 0);
    IS(NOT_FOUND, palimpsest_report_get_range(0, &(struct palimpsest_report_range){.size = sizeof(size_t)}));
    IS(OK, palimpsest_survey(&options, &report));
    MUST(palimpsest_frozen_bytes() == 0 && palimpsest_report_text()[0] != 0);
    enum { LENGTH = 8 << 20 };
    char *memory = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(memory != MAP_FAILED);
    memset(memory, 5, LENGTH);
    char *kept = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(kept != MAP_FAILED);
    memset(kept, 6, LENGTH);
    IS(OK, palimpsest_freeze(&options, &report));
    MUST(report.frozen >= LENGTH && report.is_stopped == 0 && palimpsest_frozen_bytes() >= LENGTH);
    MUST(report.extents > 0 && report.peak_extra > 0 && report.once_ns > 0 && reported(&report, kept) == 0);
    MUST(skip_of((const char *)&options) == PALIMPSEST_SKIP_STACK);
    pid_t child;
    IS(OK, palimpsest_fork(&child));
    if (child == 0) {
        MUST(memory[LENGTH / 2] == 5);
        _exit(0);
    }
    int status;
    MUST(waitpid(child, &status, 0) == child && status == 0);
    /* Zeros, and not the bytes of the freeze. */
    MUST(palimpsest_madvise(memory, LENGTH / 2, MADV_DONTNEED) == 0 && memory[0] == 0 && memory[LENGTH / 2] == 5);
    char *moved = palimpsest_mremap(memory, LENGTH, 2 * LENGTH, MREMAP_MAYMOVE, NULL);
    MUST(moved != MAP_FAILED && moved[LENGTH - 1] == 5 && moved[LENGTH] == 0);
    MUST(palimpsest_madvise(memory + 1, 1, -1) == -1 && errno == EINVAL);
    if (thawing(kept, LENGTH)) {
        return 1;
    }
    /* A second freeze freezes what is new, and repairs what was written to. */
    char *later = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(later != MAP_FAILED);
    memset(later, 6, LENGTH);
    char *written = kept + LENGTH / 2;
    const unsigned long file = file_of(written);
    *written = 7;
    IS(OK, palimpsest_freeze(&options, &report));
    /* In another file, or in a huge page of its own; what was forgotten is frozen again, and two pages are too few. */
    MUST(file > 0 && file_of(written) != file && is_frozen(kept + LENGTH - 1));
    MUST(!is_frozen(kept) && skip_of(kept) == PALIMPSEST_SKIP_SMALL);
    MUST(is_frozen(later) && is_frozen(later + LENGTH - 1) && *written == 7 && written[1] == 6);
    return locking(later, LENGTH);
}

int main(void) {
    MUST(palimpsest_version() == PALIMPSEST_VERSION && PALIMPSEST_VERSION != 0 && palimpsest_error_message()[0] == 0);
    MUST(PALIMPSEST_VERSION >> 16 == PALIMPSEST_VERSION_MAJOR);
    MUST((PALIMPSEST_VERSION & 255) == PALIMPSEST_VERSION_PATCH);
    return programs() || mistakes() || keys() || freezing();
}
