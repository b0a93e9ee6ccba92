// Stands behind the preload object, and does what a test wants between the object's question or note and the system
// call: what another thread might do then.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <sys/mman.h>

// Done at the next call, once.
void (*meanwhile)(void);

static void now(void) {
  void (*wanted)(void) = meanwhile;
  meanwhile = NULL;
  if (wanted) wanted();
}

int mprotect(void *address, size_t length, int rights) {
  now();
  int (*real)(void *, size_t, int) = (int (*)(void *, size_t, int))dlsym(RTLD_NEXT, "mprotect");
  return real(address, length, rights);
}

void *mmap(void *address, size_t length, int rights, int flags, int file, off_t offset) {
  void *(*real)(void *, size_t, int, int, int, off_t) =
      (void *(*)(void *, size_t, int, int, int, off_t))dlsym(RTLD_NEXT, "mmap");
  void *made = real(address, length, rights, flags, file, offset);
  now();
  return made;
}

int mlock(const void *address, size_t length) {
  now();
  int (*real)(const void *, size_t) = (int (*)(const void *, size_t))dlsym(RTLD_NEXT, "mlock");
  return real(address, length);
}

int mlockall(int flags) {
  now();
  int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, "mlockall");
  return real(flags);
}
