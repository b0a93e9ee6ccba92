// The least that can freeze a fork server: at its first fork each private anonymous mapping of 2 MiB or more becomes
// one private mapping of one sealed file with the same bytes. Nothing else: no account, no repairs, no guards.
//
// With LEAST_HOT=FIRST-LAST,... these pages of the heap, counted from its beginning, stay anonymous.
//
//     cc -O2 -shared -fPIC -nostartfiles least.c -o least.so
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static void freeze(unsigned long from, unsigned long to) {
  int file = memfd_create("least", MFD_ALLOW_SEALING | MFD_CLOEXEC);
  for (unsigned long at = from; at < to;) {
    long wrote = pwrite(file, (void *)at, to - at, at - from);
    if (wrote <= 0) _exit(70);
    at += wrote;
  }
  if (fcntl(file, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL)) _exit(71);
  void *there = mmap((void *)from, to - from, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, file, 0);
  if (there != (void *)from) _exit(72);
  const char *hot = getenv("LEAST_HOT");
  unsigned long first, last;
  int used;
  static char kept[1 << 20];
  for (; hot && sscanf(hot, "%lu-%lu%n", &first, &last, &used) == 2; hot += used + (hot[used] == ',')) {
    unsigned long start = from + first * 4096, len = (last - first + 1) * 4096;
    if (start + len > to || len > sizeof kept) continue;
    memcpy(kept, (void *)start, len);
    mmap((void *)start, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    madvise((void *)start, len, MADV_NOHUGEPAGE);
    memcpy((void *)start, kept, len);
    if (!hot[used]) break;
  }
  close(file);
}

static void freeze_all(void) {
  // Not on the heap, which is replaced.
  static char text[1 << 16];
  int maps = open("/proc/self/maps", O_RDONLY | O_CLOEXEC), length = 0, more;
  while ((more = read(maps, text + length, sizeof text - 1 - length)) > 0) length += more;
  close(maps);
  for (char *line = text, *end; (end = strchr(line, '\n')); line = end + 1) {
    unsigned long from, to, inode;
    char rights[8];
    if (sscanf(line, "%lx-%lx %7s %*x %*s %lu", &from, &to, rights, &inode) != 4) continue;
    char *name = memchr(line, '[', end - line);
    int is_heap = name && !memcmp(name, "[heap]", 6);
    if (!strcmp(rights, "rw-p") && inode == 0 && to - from >= 2 << 20 && (!name || is_heap) &&
        !((unsigned long)text >= from && (unsigned long)text < to))
      freeze(from, to);
  }
}

pid_t fork(void) {
  static pid_t (*real)(void);
  if (!real) {
    real = (pid_t(*)(void))dlsym(RTLD_NEXT, "fork");
    freeze_all();
  }
  return real();
}
