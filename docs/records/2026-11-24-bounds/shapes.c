// What the kernel takes to fork processes of some shapes, without Palimpsest: who takes turns are children of this
// program, each of one shape, which fork a child that ends at once, and wait for it. Each shape alternates with an
// empty process. Microseconds of the fork alone by the clock, least; its processor time, lower quartile; processor time
// of parent and child together, with exit and wait, lower quartile; and how many times those of the empty process.
//
//     cc -O2 shapes.c -o shapes && nice -n -19 ./shapes TURNS
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define GIB (1UL << 30)

// Memory of sealed files, mapped privately, all of it read once; small mappings beside it; pages that the parent writes
// before each fork; clocks read; mappings that the kernel wipes in children, written before each fork.
static const struct shape {
  const char *name;
  size_t bytes;
  int files, small, written, clocks, wiped, shared;
} shapes[] = {
    {"empty", 0, 0, 0, 0, 0, 0, 0},
    {"empty, again", 0, 0, 0, 0, 0, 0, 0},
    {"4 GiB in 1 file", 4 * GIB, 1, 0, 0, 0, 0, 0},
    {"4 GiB in 1 file, mapped shared and read-only", 4 * GIB, 1, 0, 0, 0, 0, 1},
    {"4 GiB in 2 files", 4 * GIB, 2, 0, 0, 0, 0, 0},
    {"4 GiB in 4 files", 4 * GIB, 4, 0, 0, 0, 0, 0},
    {"4 GiB in 8 files", 4 * GIB, 8, 0, 0, 0, 0, 0},
    {"8 files, 3 small", 4 * GIB, 8, 3, 0, 0, 0, 0},
    {"8 files, 3 small, 1 wiped", 4 * GIB, 8, 3, 0, 0, 1, 0},
    {"8 files, 3 small, 1 wiped, 2 clocks", 4 * GIB, 8, 3, 0, 2, 1, 0},
    {"8 files, 3 small, 1 wiped, 2 clocks, 1 written", 4 * GIB, 8, 3, 1, 2, 1, 0},
    {"1 file, 1 small, 1 wiped, 2 clocks", 4 * GIB, 1, 1, 0, 2, 1, 0},
    {"1 file, 1 small, 1 wiped, 2 clocks, 1 written", 4 * GIB, 1, 1, 1, 2, 1, 0},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1e6 + time.tv_nsec / 1e3;
}

static void *file(size_t len, int how) {
  int fd = memfd_create("shape", MFD_ALLOW_SEALING);
  if (fd < 0 || ftruncate(fd, len)) abort();
  // Given back before the first fork, which would copy its page table entries.
  size_t room = 1 << 20;
  char *block = mmap(0, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  memset(block, 1, room);
  for (size_t from = 0; from < len; from += room)
    if (pwrite(fd, block, len - from < room ? len - from : room, from) < 0) abort();
  munmap(block, room);
  if (fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL)) abort();
  char *at = mmap(0, len, how == MAP_SHARED ? PROT_READ : PROT_READ | PROT_WRITE, how, fd, 0);
  if (at == MAP_FAILED) abort();
  close(fd);
  for (size_t page = 0; page < len; page += 4096) (void)*(volatile char *)(at + page);
  return at;
}

static volatile char *page(int is_wiped) {
  // Between pages without rights, as the kernel would make one mapping of neighbours.
  char *at = mmap(0, 3 * 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (!is_wiped) munmap(at, 4096), munmap(at + 8192, 4096);
  mprotect(at + 4096, 4096, PROT_READ | PROT_WRITE);
  if (is_wiped) {
    munmap(at, 4096), munmap(at + 8192, 4096);
    madvise(at + 4096, 4096, MADV_WIPEONFORK);
  }
  at[4096] = 1;
  return at + 4096;
}

static double ran(void) {
  struct timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return time.tv_sec * 1e6 + time.tv_nsec / 1e3;
}

// Answers each byte with the time of a fork by the clock, its processor time, and that of it with exit and wait.
static void serve(const struct shape *shape, int from, int to) {
  for (int i = 0; i < shape->files; i++) file(shape->bytes / shape->files, shape->shared ? MAP_SHARED : MAP_PRIVATE);
  for (int i = 0; i < shape->small; i++) file(4096 * (i + 2), MAP_PRIVATE);
  volatile char *written = shape->written ? page(0) : 0, *wiped = shape->wiped ? page(1) : 0;
  char byte = 0;
  if (write(to, &byte, 1) != 1) abort();
  while (read(from, &byte, 1) == 1) {
    double times[3], used = ran(), start = now();
    if (shape->clocks) ran();
    pid_t child = fork();
    if (child == 0) _exit(0);
    if (shape->clocks) ran();
    if (written) written[0]++;
    if (wiped) wiped[0]++;
    times[0] = now() - start;
    times[1] = ran() - used;
    int status;
    struct rusage usage;
    wait4(child, &status, 0, &usage);
    times[2] = ran() - used + usage.ru_utime.tv_usec + usage.ru_stime.tv_usec;
    if (write(to, times, sizeof times) != sizeof times) abort();
  }
  _exit(0);
}

static int compare(const void *left, const void *right) {
  double a = *(double *)left, b = *(double *)right;
  return (a > b) - (a < b);
}

int main(int count, char **arguments) {
  // Each shape holds its memory only while it is measured beside an empty process: all would not fit.
  int turns = count > 1 ? atoi(arguments[1]) : 2000;
  double *times[2][3];
  for (int i = 0; i < 6; i++) times[i / 3][i % 3] = calloc(turns, 8);
  printf("%-50s %6s %6s | %6s %6s | %6s %6s\n", "", "fork", "ratio", "used", "ratio", "both", "ratio");
  for (int i = 1; i < SHAPES; i++) {
    int ask[2][2], tell[2][2];
    pid_t servers[2];
    for (int who = 0; who < 2; who++) {
      if (pipe2(ask[who], O_CLOEXEC) || pipe2(tell[who], O_CLOEXEC)) abort();
      servers[who] = fork();
      if (servers[who] == 0) {
        close(ask[who][1]);
        if (who) close(ask[0][1]);
        serve(&shapes[who ? i : 0], ask[who][0], tell[who][1]);
      }
      char ready;
      if (read(tell[who][0], &ready, 1) != 1) abort();
    }
    for (int turn = 0; turn < turns; turn++)
      for (int order = 0; order < 2; order++) {
        int who = (order + turn) % 2;
        double told[3];
        if (write(ask[who][1], "", 1) != 1 || read(tell[who][0], told, sizeof told) != sizeof told) abort();
        for (int j = 0; j < 3; j++) times[who][j][turn] = told[j];
      }
    for (int who = 0; who < 2; who++) {
      close(ask[who][0]), close(ask[who][1]), close(tell[who][0]), close(tell[who][1]);
      waitpid(servers[who], 0, 0);
    }
    printf("%-50s", shapes[i].name);
    for (int j = 0; j < 3; j++) {
      for (int who = 0; who < 2; who++) qsort(times[who][j], turns, 8, compare);
      int at = j ? turns / 4 : 0;
      printf(" %6.1f %6.3f%s", times[1][j][at], times[1][j][at] / times[0][j][at], j < 2 ? " |" : "\n");
    }
    fflush(stdout);
  }
}
