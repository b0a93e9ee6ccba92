// What a look at the thread's CPU time right after a fork costs: a process with 2.5 GB in huge pages forks children that
// are busy for 8 ms. Milliseconds until the parent goes on, by what it asks for at once: nothing, its CPU time before
// the fork, its CPU time after the fork, or its resource usage after the fork.
//
//     cc -O1 clock.c -o clock && ./clock
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { FORKS = 60 };

static double now(clockid_t clock) {
  struct timespec time;
  clock_gettime(clock, &time);
  return time.tv_sec * 1e3 + time.tv_nsec / 1e6;
}

static int compare(const void *left, const void *right) {
  double a = *(double *)left, b = *(double *)right;
  return (a > b) - (a < b);
}

int main(void) {
  static const char *ways[] = {"nothing", "CPU time before", "CPU time after", "resource usage after"};
  size_t len = 2500UL << 20;
  char *memory = mmap(0, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  madvise(memory, len, MADV_HUGEPAGE);
  memset(memory, 1, len);
  printf("%-22s %6s %6s %6s %6s %6s\n", "", "least", "lower", "median", "upper", "most");
  for (int way = 0; way < 4; way++) {
    double times[FORKS];
    for (int i = 0; i < FORKS; i++) {
      struct rusage usage;
      usleep(20000);
      if (way == 1) now(CLOCK_THREAD_CPUTIME_ID);
      double start = now(CLOCK_MONOTONIC);
      pid_t child = fork();
      if (child == 0) {
        for (double end = now(CLOCK_MONOTONIC) + 8; now(CLOCK_MONOTONIC) < end;) {}
        _exit(0);
      }
      if (way == 2) now(CLOCK_THREAD_CPUTIME_ID);
      if (way == 3) getrusage(RUSAGE_THREAD, &usage);
      // A little work, and a way into the kernel and back.
      for (volatile int j = 0; j < 1000; j++) {}
      getppid();
      times[i] = now(CLOCK_MONOTONIC) - start;
      waitpid(child, 0, 0);
    }
    qsort(times, FORKS, sizeof *times, compare);
    printf("%-22s", ways[way]);
    for (int at = 0; at <= 4; at++) printf(" %6.2f", times[at * (FORKS - 1) / 4]);
    puts("");
  }
}
