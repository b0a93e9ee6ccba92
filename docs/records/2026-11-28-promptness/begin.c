// How long it takes until a process that borrows its parent's memory runs, and until its parent, which waits for that,
// goes on; the process computes for half a millisecond then.
//
//     cc -O2 -o begin begin.c && ./begin NANOSECONDS YIELDS
//
// With a time slice of so many nanoseconds for both, until either has seen the other (0: as they are); and with a yield
// of the process behind the wake, if YIELDS is 1. Prints milliseconds of 300 rounds.

#define _GNU_SOURCE
#include <linux/futex.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { ROUNDS = 300, STACK = 65536, KEEP_POLICY = 8 };

// `struct sched_attr` of the kernel, in its first version.
struct attributes {
  uint32_t size, policy;
  uint64_t flags;
  int32_t nice;
  uint32_t priority;
  uint64_t runtime, deadline, period;
};

static volatile uint32_t word;
static volatile long begun;
static int is_short, yields;
static struct attributes own;

static long now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1000000000 + time.tv_nsec;
}

static void slice(uint64_t nanoseconds) {
  struct attributes wanted = own;
  wanted.runtime = nanoseconds;
  wanted.flags |= KEEP_POLICY;
  if (is_short) syscall(SYS_sched_setattr, 0, &wanted, 0);
}

static int serve(void *nothing) {
  (void)nothing;
  begun = now();
  slice(own.runtime);
  word = 1;
  syscall(SYS_futex, &word, FUTEX_WAKE, 1, 0, 0, 0);
  if (yields) sched_yield();
  for (long start = now(); now() - start < 500000;) {}
  return 0;
}

static int compare(const void *one, const void *other) {
  long difference = *(const long *)one - *(const long *)other;
  return (difference > 0) - (difference < 0);
}

static void print(const char *what, long *times) {
  qsort(times, ROUNDS, sizeof *times, compare);
  printf("%s: p50 %.3f, p90 %.3f, p99 %.3f, max %.3f\n", what, times[ROUNDS / 2] / 1e6, times[ROUNDS * 9 / 10] / 1e6,
         times[ROUNDS * 99 / 100] / 1e6, times[ROUNDS - 1] / 1e6);
}

int main(int count, char **arguments) {
  if (count < 3) return 2;
  uint64_t nanoseconds = strtoull(arguments[1], 0, 10);
  is_short = nanoseconds > 0;
  yields = atoi(arguments[2]);
  syscall(SYS_sched_getattr, 0, &own, sizeof own, 0);
  char *stack = mmap(0, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  long begins[ROUNDS], goes_on[ROUNDS];
  for (int round = 0; round < ROUNDS; round++) {
    usleep(20000);
    word = 0;
    long start = now();
    slice(nanoseconds);
    int child = clone(serve, stack + STACK, CLONE_VM | CLONE_FILES, 0);
    while (!word) syscall(SYS_futex, &word, FUTEX_WAIT, 0, 0, 0, 0);
    slice(own.runtime);
    begins[round] = begun - start;
    goes_on[round] = now() - start;
    waitpid(child, 0, __WALL);
  }
  print("the process runs", begins);
  print("its parent goes on", goes_on);
  return 0;
}
