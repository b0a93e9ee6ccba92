// What one more mapping, and pages in it, cost a fork: in turn, a process forks a child that ends at once, with nothing
// more, and with each kind of mapping. Microseconds of the fork, and of it with the child's end: lower quartile,
// median.
//
//     cc -O2 mappings.c -o mappings && ./mappings

#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { ROUNDS = 4000, EXTENTS = 4 };
enum kind { NOTHING, UNTOUCHED, ONE_PAGE, ONE_REGION, TWO_REGIONS, ONE_EXTENT, FOUR_EXTENTS, KINDS };

static const char *names[KINDS] = {
    "nothing more",          "10 MiB, untouched",       "one page in them",
    "six pages in 2 MiB",    "six pages in twice 2 MiB", "an extent of 1 GiB",
    "four extents of 1 GiB",
};

static const size_t TABLES = 10 << 20, EXTENT = 1UL << 30;
static double forks[KINDS][ROUNDS], ends[KINDS][ROUNDS];

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1e6 + time.tv_nsec / 1e3;
}

static int by_value(const void *one, const void *other) {
  double a = *(const double *)one, b = *(const double *)other;
  return (a > b) - (a < b);
}

static void *map(char *at, size_t len, int file) {
  int flags = MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE | (file < 0 ? MAP_ANONYMOUS : 0);
  void *mapped = mmap(at, len, PROT_READ | PROT_WRITE, flags, file, 0);
  if (mapped == MAP_FAILED) {
    perror("mmap");
    exit(1);
  }
  return mapped;
}

int main(void) {
  // Far enough below all else for page tables of their own, and near enough for the same table of tables of tables.
  uintptr_t low = (uintptr_t)mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  char *tables = (char *)((low - 5 * EXTENT) & ~((2UL << 20) - 1)), *extents = tables - 5 * EXTENT;
  int files[EXTENTS];
  for (int at = 0; at < EXTENTS; at++) {
    files[at] = memfd_create("extent", 0);
    if (ftruncate(files[at], EXTENT)) return 1;
  }
  for (int round = 0; round < ROUNDS; round++) {
    for (int turn = 0; turn < KINDS; turn++) {
      enum kind kind = (turn + round) % KINDS;
      if (kind >= UNTOUCHED && kind <= TWO_REGIONS) {
        madvise(map(tables, TABLES, -1), TABLES, MADV_NOHUGEPAGE);
        int pages = kind == UNTOUCHED ? 0 : kind == ONE_PAGE ? 1 : 6;
        size_t step = kind == TWO_REGIONS ? 0x80000 : 0x8000;
        for (int page = 0; page < pages; page++) tables[page * step] = 1;
      }
      int mapped = kind == ONE_EXTENT ? 1 : kind == FOUR_EXTENTS ? EXTENTS : 0;
      for (int at = 0; at < mapped; at++) map(extents + at * EXTENT, EXTENT, files[at]);
      double begun = now();
      pid_t child = fork();
      if (!child) _exit(0);
      forks[kind][round] = now() - begun;
      waitpid(child, NULL, 0);
      ends[kind][round] = now() - begun;
      if (kind >= UNTOUCHED && kind <= TWO_REGIONS) munmap(tables, TABLES);
      if (mapped) munmap(extents, mapped * EXTENT);
    }
  }
  for (int kind = 0; kind < KINDS; kind++) {
    qsort(forks[kind], ROUNDS, sizeof(double), by_value);
    qsort(ends[kind], ROUNDS, sizeof(double), by_value);
    printf("%-26s fork %6.2f %6.2f  with its end %6.2f %6.2f\n", names[kind], forks[kind][ROUNDS / 4],
           forks[kind][ROUNDS / 2], ends[kind][ROUNDS / 4], ends[kind][ROUNDS / 2]);
  }
}
