// Counts system calls and page faults.
//
//     counter count PROGRAM ARGUMENT...   executes it and prints on standard error how many calls its first process
//                                         makes: a number each time that it calls getppid, and one at its end
//     counter fork TIMES MEBIBYTES        writes to that much memory, forks that often and waits for each child; calls
//                                         getppid before each fork
//     counter faults TIMES                forks that often, and prints for each fork how many pages the process itself
//                                         had to copy or get for it
//     counter ends TIMES                  forks that often; for each child that ends by exit, prints how many pages it
//                                         had to copy or get
//     counter begin-WAY ARGUMENT          does what it does without `begin-`, as the process that `palimpsest run` has
//                                         started, at the same addresses each time
//     counter bare TIMES                  forks that often; for each child that does nothing but end, prints how many
//                                         pages it had to copy or get
//     counter copied KIBIBYTES            writes to that much memory in small mappings, forks, and prints for a late
//                                         child how many mappings it has, and how many with pages of its own
//     counter wait WAY                    writes to 16 MiB, forks, and waits 30 times: for what is there (poll, select)
//                                         or for a short time (nanosleep); calls getppid before each wait

#include <alloca.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { REFUSED = 3 };

static int count(char **command) {
  pid_t child = fork();
  if (child == 0) {
    if (ptrace(PTRACE_TRACEME, 0, 0, 0)) _exit(REFUSED);
    execv(command[0], command);
    _exit(127);
  }
  long calls = 0;
  int status;
  // The first stop is that of `execv`.
  if (waitpid(child, &status, 0) != child || !WIFSTOPPED(status)) return REFUSED;
  ptrace(PTRACE_SETOPTIONS, child, 0, PTRACE_O_TRACESYSGOOD);
  for (int signal = 0;;) {
    ptrace(PTRACE_SYSCALL, child, 0, signal);
    if (waitpid(child, &status, 0) != child) return 1;
    if (WIFEXITED(status)) break;
    if (!WIFSTOPPED(status)) return 1;
    signal = WSTOPSIG(status);
    if (signal == (SIGTRAP | 0x80)) {
      // Each call stops it twice, except the one that ends it.
      struct __ptrace_syscall_info info;
      if (ptrace(PTRACE_GET_SYSCALL_INFO, child, sizeof info, &info) < 0) return REFUSED;
      if (info.op == PTRACE_SYSCALL_INFO_ENTRY) {
        calls++;
        if (info.entry.nr == SYS_getppid) {
          fprintf(stderr, "%ld\n", calls);
          calls = 0;
        }
      }
      signal = 0;
    } else if (signal == SIGTRAP) {
      signal = 0;
    }
  }
  fprintf(stderr, "%ld\n", calls);
  return WEXITSTATUS(status);
}

static int forks(long times, size_t mebibytes) {
  size_t length = mebibytes << 20;
  volatile char *memory = malloc(length + 1);
  for (size_t at = 0; at < length; at += 1024) memory[at] = 1;
  for (long number = 0; number < times; number++) {
    syscall(SYS_getppid);
    pid_t child = fork();
    if (child == 0) _exit(memory[0] > 1);
    // Its end must not interrupt the call: SIGCHLD is ignored by default.
    if (waitpid(child, 0, 0) != child) return 1;
  }
  return 0;
}

// Begins a page of the stack: whether the frames below lie on one page or two would otherwise be chance.
#define AT_A_PAGE(call)                                                             \
  do {                                                                              \
    enum { LARGEST_PAGE = 65536 };                                                  \
    volatile char *room = alloca((uintptr_t)__builtin_frame_address(0) % LARGEST_PAGE + 1); \
    room[0] = 0;                                                                    \
    return call;                                                                    \
  } while (0)

static __attribute__((noinline)) int count_faults(long times) {
  for (long number = 0; number < times; number++) {
    struct rusage before, after;
    getrusage(RUSAGE_SELF, &before);
    pid_t child = fork();
    if (child == 0) pause();
    getrusage(RUSAGE_SELF, &after);
    kill(child, SIGKILL);
    if (waitpid(child, 0, 0) != child) return 1;
    fprintf(stderr, "%ld\n", after.ru_minflt - before.ru_minflt);
  }
  return 0;
}

static int faults(long times) { AT_A_PAGE(count_faults(times)); }

// All page faults of a child that ends by `end`: `exit`, as a subshell does, or without anything else.
static __attribute__((noinline)) int count_children(long times, void (*end)(int)) {
  for (long number = 0; number < times; number++) {
    struct rusage before, after;
    getrusage(RUSAGE_CHILDREN, &before);
    pid_t child = fork();
    if (child == 0) end(0);
    if (waitpid(child, 0, 0) != child) return 1;
    getrusage(RUSAGE_CHILDREN, &after);
    fprintf(stderr, "%ld\n", after.ru_minflt - before.ru_minflt);
  }
  return 0;
}

// As the process that `palimpsest run` has started, which says at its end why it was not frozen.
static int begin(char **argument) {
  char stat[1024] = {0}, first[64], *field;
  int file = open("/proc/self/stat", O_RDONLY);
  if (file < 0 || read(file, stat, sizeof stat - 1) <= 0 || !(field = strrchr(stat, ')'))) return 1;
  // The 22nd field, and this is before the third.
  for (int number = 2; number < 22; number++) field = strchr(field + 1, ' ');
  snprintf(first, sizeof first, "%d-%lu", getpid(), strtoul(field, 0, 10));
  setenv("PALIMPSEST_STARTED", first, 1);
  // A page fault maps what the 64 KiB around it hold, wherever these begin.
  personality(ADDR_NO_RANDOMIZE);
  argument[1] += strlen("begin-");
  execv(argument[0], argument);
  return 1;
}

static int bare(long times) { AT_A_PAGE(count_children(times, _exit)); }

static int count_mappings(void) {
  FILE *smaps = fopen("/proc/self/smaps", "r");
  if (!smaps) return 1;
  char line[4096];
  long all = 0, own = 0, kilobytes;
  while (fgets(line, sizeof line, smaps)) {
    all += !strncmp(line, "VmFlags:", 8);
    own += sscanf(line, "Anonymous: %ld", &kilobytes) == 1 && kilobytes > 0;
  }
  fprintf(stderr, "%ld\n%ld\n", all, own);
  return 0;
}

static int copied(size_t kibibytes) {
  enum { EACH = 256 << 10, APART = 64 << 10, FORKS = 8 };
  // Apart from each other, so that there is no whole piece for a huge page.
  for (size_t done = 0; done < kibibytes << 10; done += EACH) {
    char *place = mmap(0, EACH + APART, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (place == MAP_FAILED || mprotect(place, EACH, PROT_READ | PROT_WRITE)) return 1;
    memset(place, 1, EACH);
  }
  for (int number = 0; number < FORKS; number++) {
    pid_t child = fork();
    if (child == 0) _exit(number + 1 == FORKS ? count_mappings() : 0);
    int status;
    if (waitpid(child, &status, 0) != child || status) return 1;
  }
  return 0;
}

static int waits(const char *way) {
  int ends[2];
  if (pipe(ends) || write(ends[1], "x", 1) != 1 || forks(1, 16)) return 1;
  for (int number = 0; number < 30; number++) {
    struct pollfd one = {ends[0], POLLIN, 0};
    fd_set set;
    FD_ZERO(&set);
    FD_SET(ends[0], &set);
    struct timespec short_time = {0, 100000};
    syscall(SYS_getppid);
    int answer = !strcmp(way, "poll")     ? poll(&one, 1, -1)
                 : !strcmp(way, "select") ? select(ends[0] + 1, &set, 0, 0, 0)
                                          : nanosleep(&short_time, 0) + 1;
    if (answer != 1) return 1;
  }
  syscall(SYS_getppid);
  return 0;
}

int main(int arguments, char **argument) {
  if (arguments > 2 && !strcmp(argument[1], "count")) return count(argument + 2);
  if (arguments > 3 && !strcmp(argument[1], "fork")) return forks(atol(argument[2]), strtoul(argument[3], 0, 10));
  if (arguments > 2 && !strcmp(argument[1], "faults")) return faults(atol(argument[2]));
  if (arguments > 2 && !strncmp(argument[1], "begin-", 6)) return begin(argument);
  if (arguments > 2 && !strcmp(argument[1], "ends")) return count_children(atol(argument[2]), exit);
  if (arguments > 2 && !strcmp(argument[1], "bare")) return bare(atol(argument[2]));
  if (arguments > 2 && !strcmp(argument[1], "copied")) return copied(strtoul(argument[2], 0, 10));
  if (arguments > 2 && !strcmp(argument[1], "wait")) return waits(argument[2]);
  return 2;
}
