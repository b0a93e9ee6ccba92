// Stands behind the preload object: makes the time between its question and the system call long.
#define _GNU_SOURCE
#include <stddef.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int madvise(void *address, size_t length, int advice) {
  if (advice == MADV_DONTNEED) {
    struct timespec begin, now;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    // Not asleep: a signal must find it here, and let it go on here.
    do clock_gettime(CLOCK_MONOTONIC, &now);
    while (now.tv_sec - begin.tv_sec < 2);
  }
  return syscall(SYS_madvise, address, length, advice);
}
