// parts FILE [ROUNDS]: what the second process of a program with a shared copy pays for, part by part, in milliseconds
// of the thread's processor time, for the whole file. The calls are those of `sys::numa::text::Stand`.
//
// gcc -O2 -o parts parts.c -lcrypto; FILE: any large file on ext4, read anew here into small and into huge pages.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { HUGE = 2 << 20, AROUND = 64 << 10, MOST = 101 };
enum part { OPEN, MAP, BRING_IN, COMPARE, SCAN, EXCHANGE, READ_ONE, HASH_ONE, BY_READ, PARTS };
static const char *const names[PARTS] = {
    "open and check the object", "map the object",        "bring in the file's pages", "compare all bytes",
    "ask for written pages",     "exchange the mappings", "(only read one side)",      "(only SHA-256 of one side)",
    "(read and compare instead)"};
static double times[PARTS][MOST];
// Stays in the second-level cache.
static char buffer[128 << 10];

struct region { uint64_t start, end, categories; };
struct scan {
    uint64_t size, flags, start, end, walk_end, vec, vec_len, max_pages, inverted, mask, anyof, wanted;
};
#define PAGEMAP_SCAN_CALL _IOWR('f', 16, struct scan)

static void must(int is_so, const char *what) {
    if (!is_so) {
        perror(what);
        exit(1);
    }
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return time.tv_sec * 1e3 + time.tv_nsec / 1e6;
}

static char *aligned(size_t len) {
    char *at = mmap(NULL, len + HUGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    must(at != MAP_FAILED, "reserve");
    return (char *)(((uintptr_t)at + HUGE - 1) & ~(uintptr_t)(HUGE - 1));
}

static char *map(int fd, size_t len) {
    char *at = mmap(aligned(len), len, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_FIXED, fd, 0);
    must(at != MAP_FAILED, "map");
    return at;
}

static void read_anew(int fd, size_t len, int is_huge) {
    must(fsync(fd) == 0 && posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) == 0, "drop");
    char *at = map(fd, len);
    must(madvise(at, len, is_huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE) == 0, "advise");
    volatile char sum = 0;
    for (size_t i = 0; i < len; i += 4096)
        sum += at[i];
    munmap(at, len);
}

static void one(int fd, size_t len, int object, int round, int pagemap) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", getpid(), object);
    // The program's own text, as it is when it starts.
    char *own = map(fd, len);

    double start = now(), end;
#define NOTE(part) (end = now(), times[part][round] = end - start, start = end)
    int held = open(path, O_PATH | O_CLOEXEC), reopened;
    struct stat stat;
    must(held >= 0 && fstat(held, &stat) == 0 && stat.st_uid == geteuid(), "look");
    snprintf(path, sizeof path, "/proc/self/fd/%d", held);
    must((reopened = open(path, O_RDONLY | O_CLOEXEC)) >= 0, "open");
    must(fcntl(reopened, F_GET_SEALS) & F_SEAL_WRITE, "seals");
    NOTE(OPEN);
    char *stand = map(reopened, len);
    must(madvise(stand, len, MADV_POPULATE_READ) == 0, "populate");
    NOTE(MAP);
    for (size_t i = 0; i < len; i += AROUND)
        must(madvise(own + i, 4096, MADV_POPULATE_READ) == 0, "bring in");
    NOTE(BRING_IN);
    must(memcmp(own, stand, len) == 0, "compare");
    NOTE(COMPARE);
    // PAGE_IS_WRITTEN is bit 1, PAGE_IS_FILE bit 2: pages that are there and no longer the file's.
    struct region found[4];
    struct scan scan = {.size = sizeof scan, .start = (uintptr_t)own, .end = (uintptr_t)own + len,
                        .vec = (uintptr_t)found, .vec_len = 4, .inverted = 1 << 2, .mask = (1 << 2) | (1 << 3),
                        .wanted = 1 << 3};
    must(ioctl(pagemap, PAGEMAP_SCAN_CALL, &scan) >= 0, "scan");
    NOTE(SCAN);
    must(mremap(stand, len, len, MREMAP_MAYMOVE | MREMAP_FIXED, own) == own, "exchange");
    NOTE(EXCHANGE);
    uint64_t sum = 0;
    for (size_t i = 0; i < len; i += 64)
        sum += *(volatile uint64_t *)(own + i);
    NOTE(READ_ONE);
    unsigned char digest[EVP_MAX_MD_SIZE];
    must(EVP_Digest(own, len, digest, NULL, EVP_sha256(), NULL) == 1, "hash");
    NOTE(HASH_ONE);
    for (size_t at = 0; at < len; at += sizeof buffer)
        must(pread(fd, buffer, sizeof buffer, at) == sizeof buffer && memcmp(buffer, own + at, sizeof buffer) == 0,
             "read");
    NOTE(BY_READ);
    munmap(own, len);
    close(held);
    close(reopened);
}

static int by_size(const void *one, const void *other) {
    double difference = *(const double *)one - *(const double *)other;
    return (difference > 0) - (difference < 0);
}

int main(int argc, char **argv) {
    int rounds = argc > 2 ? atoi(argv[2]) : 15, fd = open(argv[1], O_RDONLY), pagemap;
    struct stat stat;
    must(fd >= 0 && fstat(fd, &stat) == 0 && rounds > 0 && rounds < MOST, "arguments");
    must((pagemap = open("/proc/self/pagemap", O_RDONLY)) >= 0, "pagemap");
    size_t len = stat.st_size / HUGE * HUGE;
    for (int is_huge = 0; is_huge < 2; ++is_huge) {
        read_anew(fd, len, is_huge);
        int object = memfd_create("parts", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        must(object >= 0 && ftruncate(object, len) == 0, "object");
        char *to = mmap(aligned(len), len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, object, 0);
        char *from = map(fd, len);
        memcpy(to, from, len);
        double start = now();
        // MADV_COLLAPSE
        int collapsed = madvise(to, len, 25);
        printf("file in %s pages, %zu MiB; the first process collapses its copy in %.1f ms (%s)\n",
               is_huge ? "huge" : "small", len >> 20, now() - start, collapsed == 0 ? "all" : strerror(errno));
        munmap(to, len);
        munmap(from, len);
        must(fcntl(object, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0, "seal");
        for (int round = 0; round < rounds; ++round)
            one(fd, len, object, round, pagemap);
        double sum = 0;
        for (int part = 0; part < PARTS; ++part) {
            qsort(times[part], rounds, sizeof(double), by_size);
            double median = times[part][rounds / 2];
            sum += part < READ_ONE ? median : 0;
            printf("  %-30s %7.3f ms (%.3f to %.3f)\n", names[part], median, times[part][0], times[part][rounds - 1]);
        }
        printf("  %-30s %7.3f ms\n", "sum without those in brackets", sum);
        close(object);
    }
    double load[3];
    getloadavg(load, 3);
    printf("load %.1f\n", load[0]);
}
