// Programs that another has executed below `palimpsest run`: `dormant WHAT`. Tells by its mappings whether the object
// sleeps: then what only relocations write to can be written to.

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;
int palimpsest_serves(void);
int palimpsest_forget(void *, size_t);
void *memset_explicit(void *, int, size_t);
void __explicit_bzero_chk(void *, size_t, size_t);
#pragma weak palimpsest_serves
#pragma weak palimpsest_forget
#pragma weak memset_explicit
#pragma weak __explicit_bzero_chk

#define CHECK(it)                                                          \
  do {                                                                     \
    if (!(it)) {                                                           \
      printf("line %d: %s; errno %d\n", __LINE__, #it, errno);             \
      fflush(stdout);                                                      \
      _exit(1);                                                            \
    }                                                                      \
  } while (0)

static unsigned long dynamic;

static int find(struct dl_phdr_info *object, size_t size, void *unused) {
  (void)size, (void)unused;
  if (!strstr(object->dlpi_name, "libpalimpsest_preload.so")) return 0;
  for (int header = 0; header < object->dlpi_phnum; header++)
    if (object->dlpi_phdr[header].p_type == PT_DYNAMIC)
      dynamic = object->dlpi_addr + object->dlpi_phdr[header].p_vaddr;
  return 1;
}

// Whether the object's dynamic section can be written to; -1 if it is not there.
static int sleeps(void) {
  char text[1 << 16], *line = text;
  size_t length = 0;
  if (!dynamic) dl_iterate_phdr(find, NULL);
  int file = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  for (ssize_t more; length < sizeof text - 1 && (more = read(file, text + length, sizeof text - 1 - length)) > 0;)
    length += more;
  close(file);
  text[length] = 0;
  for (; line && *line; line = strchr(line, '\n'), line = line ? line + 1 : NULL) {
    unsigned long start, end;
    char rights[5];
    if (sscanf(line, "%lx-%lx %4s", &start, &end, rights) == 3 && start <= dynamic && dynamic < end)
      return rights[1] == 'w';
  }
  return -1;
}

static void ends_well(pid_t child) {
  int status;
  CHECK(child > 0 && waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void forks_once(void) {
  pid_t child = fork();
  if (child == 0) _exit(0);
  ends_well(child);
}

static char *grown;

static void grow(void) {
  // Below what is put into huge pages.
  for (int part = 0; part < 8; part++) {
    grown = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(grown != MAP_FAILED);
    memset(grown, 'a' + part, 1 << 20);
  }
}

// Calls each function that the object defines, also as they fail.
static void calls(void) {
  size_t page = sysconf(_SC_PAGESIZE);
  char *memory = mmap(NULL, 4 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(memory != MAP_FAILED);
  memset(memory, 7, 4 * page);
  CHECK(mmap(NULL, 0, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED && errno == EINVAL);
  CHECK(mmap64(memory, page, PROT_READ | PROT_WRITE, MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == memory);
  CHECK(memory[0] == 0 && memory[page] == 7);
  CHECK(madvise(memory + page, page, MADV_DONTNEED) == 0 && memory[page] == 0);
  CHECK(madvise(memory, page, 12345) == -1 && errno == EINVAL);
  CHECK(mprotect(memory, page, PROT_READ) == 0 && mprotect(memory, page, PROT_READ | PROT_WRITE) == 0);
  CHECK(mprotect(memory + 1, page, PROT_READ) == -1 && errno == EINVAL);
  CHECK(pkey_mprotect(memory, page, PROT_READ | PROT_WRITE, -1) == 0);
  CHECK(mlock(memory, page) == 0 || errno == ENOMEM || errno == EPERM);
  CHECK(mlock2(memory, page, MLOCK_ONFAULT) == 0 || errno == ENOMEM || errno == EPERM);
  CHECK(munlock(memory, page) == 0);
  CHECK(mlockall(0) == -1 && errno == EINVAL);
  memory = mremap(memory, 4 * page, 8 * page, MREMAP_MAYMOVE);
  CHECK(memory != MAP_FAILED && memory[2 * page] == 7 && memory[7 * page] == 0);
  CHECK(mremap(memory, page, 0, 0) == MAP_FAILED && errno == EINVAL);
  CHECK(syscall(SYS_madvise, memory + 2 * page, page, MADV_DONTNEED) == 0 && memory[2 * page] == 0);
  CHECK(syscall(SYS_mprotect, memory, page, PROT_READ | PROT_WRITE) == 0);
  CHECK(syscall(SYS_mlock, 1, page) == -1);
  CHECK(syscall(SYS_prctl, PR_GET_DUMPABLE, 0, 0, 0, 0) >= 0);
  CHECK((void *)syscall(SYS_mmap, memory, page, PROT_READ | PROT_WRITE,
                        MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == memory);
  CHECK(syscall(SYS_execve, "/nonexistent", NULL, NULL) == -1 && errno == ENOENT);
  int segment = shmget(IPC_PRIVATE, page, IPC_CREAT | 0600);
  if (segment != -1) {
    void *attached = shmat(segment, NULL, 0);
    CHECK(attached != (void *)-1 && shmctl(segment, IPC_RMID, NULL) == 0 && shmdt(attached) == 0);
  }
  CHECK(shmat(-1, NULL, 0) == (void *)-1);
  struct pollfd none = {.fd = -1};
  struct timespec at_once = {0, 1}, left;
  struct timeval no_time = {0, 1};
  int events = epoll_create1(EPOLL_CLOEXEC);
  struct epoll_event event;
  CHECK(poll(&none, 1, 1) == 0 && ppoll(&none, 1, &at_once, NULL) == 0);
  CHECK(select(0, NULL, NULL, NULL, &no_time) == 0 && pselect(0, NULL, NULL, NULL, &at_once, NULL) == 0);
  CHECK(epoll_wait(events, &event, 1, 1) == 0 && epoll_pwait(events, &event, 1, 1, NULL) == 0);
  CHECK(epoll_wait(-1, &event, 1, 1) == -1 && errno == EBADF);
  CHECK(nanosleep(&at_once, &left) == 0 && clock_nanosleep(CLOCK_MONOTONIC, 0, &at_once, &left) == 0);
  struct timespec wrong = {0, -1};
  CHECK(nanosleep(&wrong, NULL) == -1 && errno == EINVAL && clock_nanosleep(CLOCK_REALTIME, 0, &wrong, NULL) == EINVAL);
  char secret[64];
  memset(secret, 1, sizeof secret);
  explicit_bzero(secret, sizeof secret / 2);
  CHECK(secret[0] == 0 && secret[63] == 1);
  if (__explicit_bzero_chk) __explicit_bzero_chk(secret, sizeof secret, sizeof secret);
  if (memset_explicit) CHECK(memset_explicit(secret, 3, 8) == secret && secret[7] == 3);
  if (palimpsest_forget) CHECK(palimpsest_forget(secret, sizeof secret) == 0);
  CHECK(prctl(PR_SET_NAME, "dormant", 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, NULL, 0, 0) == -1);
  char *arguments[] = {"nobody", NULL};
  CHECK(execve("/nonexistent", arguments, environ) == -1 && errno == ENOENT);
  CHECK(execv("/nonexistent", arguments) == -1 && execvp("/nonexistent", arguments) == -1);
  CHECK(execvpe("no-such-program", arguments, environ) == -1 && execl("/nonexistent", "a", NULL) == -1);
  CHECK(execlp("no-such-program", "a", NULL) == -1 && execle("/nonexistent", "a", NULL, environ) == -1);
  CHECK(fexecve(-1, arguments, environ) == -1 && execveat(-1, "a", arguments, environ, 0) == -1);
  char *shell[] = {"sh", "-c", "exit 0", NULL};
  pid_t child;
  CHECK(posix_spawn(&child, "/bin/sh", NULL, NULL, shell, environ) == 0);
  ends_well(child);
  CHECK(posix_spawnp(&child, "sh", NULL, NULL, shell, environ) == 0);
  ends_well(child);
  CHECK(posix_spawn(&child, "/nonexistent", NULL, NULL, shell, environ) == ENOENT);
  CHECK(system("exit 3") == 3 << 8);
  FILE *told = popen("echo told", "r");
  char word[8] = "";
  CHECK(told && fgets(word, sizeof word, told) && strcmp(word, "told\n") == 0 && pclose(told) == 0);
  errno = 77;
  for (int count = 0; count < 20; count++) forks_once();
  child = vfork();
  if (child == 0) {
    execve("/bin/sh", shell, environ);
    _exit(9);
  }
  ends_well(child);
  CHECK(errno == 77);
}

static void install(void) {
  struct sock_filter allow[] = {BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  struct sock_fprog filter = {1, allow};
  CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter, 0, 0) == 0);
}

static void on_signal(int signal) {
  (void)signal;
  forks_once();
}

static void on_alarm(int signal) {
  (void)signal;
  void *memory = mmap(NULL, 3 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory != MAP_FAILED) munmap(memory, 3 << 20);
}

static pthread_barrier_t together;

// Maps, forks and discards, beside others that do the same.
static void *races(void *argument) {
  const char sign = (char)(long)argument;
  const size_t length = 4 << 20, half = length / 2;
  pthread_barrier_wait(&together);
  for (int round = 0; round < 3; round++) {
    char *memory = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    memset(memory, sign, length);
    if (sign % 2) {
      pid_t child = fork();
      if (child == 0) _exit(memory[0] != sign || memory[half] != sign || memory[length - 1] != sign);
      ends_well(child);
    }
    CHECK(madvise(memory, half, MADV_DONTNEED) == 0);
    CHECK(memory[0] == 0 && memory[half - 1] == 0 && memory[half] == sign);
  }
  return NULL;
}

int main(int count, char **arguments) {
  CHECK(count == 2);
  const char *what = arguments[1];
  if (strcmp(what, "asleep") == 0) return sleeps();
  CHECK(sleeps() == 1);
  CHECK(palimpsest_serves && palimpsest_serves() == 1);
  if (strcmp(what, "calls") == 0) {
    calls();
    CHECK(sleeps() == 1);
  } else if (strcmp(what, "grows") == 0) {
    forks_once();
    CHECK(sleeps() == 1);
    // What was there at the start counts.
    for (char **variable = environ; *variable; variable++) memset(*variable, 'x', strlen(*variable));
    clearenv();
    grow();
    CHECK(sleeps() == 1);
    errno = 77;
    forks_once();
    CHECK(errno == 77 && sleeps() == 0 && grown[5] == 'h' && palimpsest_serves() == 1);
    calls();
  } else if (strcmp(what, "daemon") == 0) {
    // What goes on in the background, twice, as daemons do.
    for (int generation = 0; generation < 2; generation++) {
      pid_t child = fork();
      if (child != 0) {
        ends_well(child);
        CHECK(sleeps() == 1);
        return 0;
      }
    }
    grow();
    forks_once();
    CHECK(sleeps() == 0);
  } else if (strcmp(what, "maps") == 0) {
    CHECK(mmap(NULL, 4 << 20, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED && sleeps() == 1);
    CHECK(mmap(NULL, 4 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED);
    CHECK(sleeps() == 0);
  } else if (strcmp(what, "confines") == 0) {
    install();
    CHECK(sleeps() == 0);
    grow();
    forks_once();
  } else if (strcmp(what, "borrows") == 0) {
    // A child in the same memory wakes nobody, and confines only itself.
    pid_t child = vfork();
    if (child == 0) {
      install();
      grow();
      mmap(NULL, 4 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      pid_t grandchild = fork();
      if (grandchild == 0) _exit(0);
      _exit(waitpid(grandchild, NULL, 0) == grandchild && sleeps() == 1 ? 0 : 1);
    }
    ends_well(child);
    CHECK(sleeps() == 1);
    forks_once();
    CHECK(sleeps() == 0);
  } else if (strcmp(what, "races") == 0) {
    enum { THREADS = 8 };
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    struct itimerval often = {{0, 1000}, {0, 1000}};
    pthread_t threads[THREADS];
    CHECK(sigaction(SIGALRM, &action, NULL) == 0 && setitimer(ITIMER_REAL, &often, NULL) == 0);
    CHECK(pthread_barrier_init(&together, NULL, THREADS) == 0);
    for (long thread = 0; thread < THREADS; thread++)
      CHECK(pthread_create(&threads[thread], NULL, races, (void *)(thread + 1)) == 0);
    for (int thread = 0; thread < THREADS; thread++) CHECK(pthread_join(threads[thread], NULL) == 0);
    CHECK(sleeps() == 0);
  } else if (strcmp(what, "handles") == 0) {
    // In a handler too, but not on its own stack.
    static char stack[64 << 10];
    stack_t other = {.ss_sp = stack, .ss_size = sizeof stack};
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_ONSTACK};
    CHECK(sigaltstack(&other, NULL) == 0 && sigaction(SIGUSR1, &action, NULL) == 0);
    grow();
    raise(SIGUSR1);
    CHECK(sleeps() == 1);
    action.sa_flags = 0;
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    raise(SIGUSR1);
    CHECK(sleeps() == 0);
  } else {
    return 2;
  }
  return 0;
}
