// Stands behind the preload object: lengthens the time between its question and the system call.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <sys/mman.h>
#include <time.h>

int madvise(void *address, size_t length, int advice) {
  if (advice == MADV_DONTNEED) {
    struct timespec begin, now;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    // Not asleep: a signal must find it here, and let it go on here.
    do clock_gettime(CLOCK_MONOTONIC, &now);
    while (now.tv_sec - begin.tv_sec < 2);
  }
  int (*real)(void *, size_t, int) = (int (*)(void *, size_t, int))dlsym(RTLD_NEXT, "madvise");
  return real(address, length, advice);
}
