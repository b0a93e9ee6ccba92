// Memory is frozen in the middle of a call. One scenario per name; prints what the program sees of its memory.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define M (1UL << 20)
#define LENGTH (8 * M)
#define PART (2 * M)

static unsigned char *at;

static void die(const char *what) { perror(what); _exit(99); }

static void freeze(void) {
  int status;
  pid_t child = fork();
  if (child < 0) die("fork");
  if (child == 0) _exit(0);
  if (waitpid(child, &status, 0) != child || status != 0) die("child");
}

static void fill_and_freeze(void) {
  memset(at + PART, 7, PART);
  freeze();
}

static void in_the_next_call(void (*wanted)(void)) {
  void (**meanwhile)(void) = dlsym(RTLD_DEFAULT, "meanwhile");
  if (!meanwhile) die("nothing stands behind");
  *meanwhile = wanted;
}

static int is_done(void) { return *(void (**)(void))dlsym(RTLD_DEFAULT, "meanwhile") == NULL; }

static long wrong(unsigned char expected) {
  long count = 0;
  for (size_t i = 0; i < PART; i += 4096) count += at[PART + i] != expected;
  return count;
}

static long locked(void) {
  char line[256];
  long value = -1;
  FILE *file = fopen("/proc/self/status", "r");
  while (file && fgets(line, sizeof line, file)) sscanf(line, "VmLck: %ld", &value);
  if (file) fclose(file);
  return value;
}

// Nothing is frozen before the call.
static void protect(void) {
  in_the_next_call(freeze);
  errno = 5;
  printf("mprotect: %d", mprotect(at + PART, PART, PROT_READ));
  printf(" %d, frozen meanwhile: %d\n", errno, is_done());
  printf("discarded: %d\n", madvise(at + PART, PART, MADV_DONTNEED));
  printf("not zero: %ld\n", wrong(0));
  int zeros = open("/dev/zero", O_RDONLY);
  printf("written: %zd\n", read(zeros, at + PART, 1));
}

static void thaw_other(void) {
  int (*forget)(void *, size_t) = (int (*)(void *, size_t))dlsym(RTLD_DEFAULT, "palimpsest_forget");
  int done = forget(at + 6 * M, 1);
  printf("thawed meanwhile: %d %s\n", done, done == -1 ? strerror(errno) : "");
}

static void map_while(void (*other)(void)) {
  in_the_next_call(other);
  void *made = mmap(at + PART, PART, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  printf("mapped: %d, done meanwhile: %d\n", made == at + PART, is_done());
  printf("discarded: %d\n", madvise(at + PART, PART, MADV_DONTNEED));
  printf("not zero: %ld\n", wrong(0));
}

static void map(void) { map_while(fill_and_freeze); }

// Nobody may freeze or thaw, since the call is not noted yet.
static void map_frozen(void) {
  freeze();
  map_while(thaw_other);
}

static void lock(void) {
  in_the_next_call(freeze);
  if (mlock(at + PART, 4096)) die("mlock");
  printf("frozen meanwhile: %d, %ld kB locked\n", is_done(), locked());
  // Thaws.
  explicit_bzero(at + PART, 16);
  printf("%ld kB locked\n", locked());
}

static void lock_all(void) {
  in_the_next_call(freeze);
  if (mlockall(MCL_CURRENT)) die("mlockall");
  long before = locked();
  printf("frozen meanwhile: %d\n", is_done());
  explicit_bzero(at + PART, 16);
  printf("%d\n", locked() >= before);
}

static const struct { const char *name; void (*run)(void); } table[] = {
#define S(n) { #n, n }
  S(protect), S(map), S(map_frozen), S(lock), S(lock_all),
};

int main(int count, char **arguments) {
  at = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) die("mmap");
  memset(at, 1, LENGTH);
  for (size_t i = 0; count == 2 && i < sizeof table / sizeof *table; i++) {
    if (!strcmp(arguments[1], table[i].name)) { table[i].run(); fflush(stdout); return 0; }
  }
  return 2;
}
