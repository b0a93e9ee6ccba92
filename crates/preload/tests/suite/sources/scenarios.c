/* One scenario per name: prints what a program can see of its memory. The test runs each with and without the preload
 * object and compares. Nothing printed may depend on addresses, process ids or time. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define K 1024UL
#define M (1024 * K)

static void die(const char *what) { printf("%s: %s\n", what, strerror(errno)); fflush(stdout); _exit(99); }

/* Memory that is frozen at the next fork: every page has its own content. */
static unsigned char *filled(size_t length) {
    unsigned char *at = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) die("mmap");
    for (size_t i = 0; i < length; i += 64) at[i] = (unsigned char)(1 + (i / 4096 + i / 64) % 251);
    return at;
}

static uint64_t sum(const unsigned char *at, size_t length) {
    uint64_t h = 14695981039346656037ULL;
    for (size_t i = 0; i < length; i += 8) { uint64_t w; memcpy(&w, at + i, 8); h = (h ^ w) * 1099511628211ULL; }
    return h;
}

static void show(const char *what, const unsigned char *at, size_t length) {
    printf("%s: %016llx\n", what, (unsigned long long)sum(at, length));
}

static void result(const char *what, long value) {
    int e = errno;
    printf("%s: %ld %s\n", what, value, value == -1 ? strerror(e) : "");
}

static int reap(pid_t child) {
    int status;
    if (waitpid(child, &status, 0) != child) die("waitpid");
    return WIFSIGNALED(status) ? 1000 + WTERMSIG(status) : WEXITSTATUS(status);
}

/* A fork whose child prints the sum of memory. */
static void fork_and_show(const char *what, const unsigned char *at, size_t length) {
    fflush(stdout);
    pid_t child = fork();
    if (child < 0) die("fork");
    if (child == 0) { printf("child, "); show(what, at, length); fflush(stdout); _exit(3); }
    printf("%s: child ended with %d\n", what, reap(child));
    show(what, at, length);
}

static void freeze(void) {
    fflush(stdout);
    pid_t child = fork();
    if (child < 0) die("fork");
    if (child == 0) _exit(0);
    if (reap(child) != 0) die("first child");
}

/* ---- advice ---- */
static void advice(int kind, const char *name, int via_syscall) {
    unsigned char *at = filled(8 * M);
    freeze();
    at[5 * M] = 77;
    errno = 5;
    size_t length = 2 * M + 4096;
    long r = via_syscall ? syscall(SYS_madvise, at + 1 * M, length, kind) : madvise(at + 1 * M, length, kind);
    result(name, r);
    if (r == 0) printf("errno %d\n", errno);
    /* Else old bytes may be seen until the kernel needs the pages. */
    if (kind == MADV_FREE) memset(at + 1 * M, 0, length);
    show("after", at, 8 * M);
    memset(at + 1 * M + 4096, 9, 3 * 4096);
    fork_and_show("written again", at, 8 * M);
    result("one page", madvise(at + 6 * M, 4096, kind));
    result("unaligned", madvise(at + 6 * M + 1, 4096, kind));
    result("nothing", madvise(at + 6 * M, 0, kind));
    result("length over all", madvise(at + 6 * M, (size_t)-4096, kind));
    if (kind == MADV_FREE) memset(at + 6 * M, 0, 4096);
    show("at last", at, 8 * M);
}
static void dontneed(void) { advice(MADV_DONTNEED, "DONTNEED", 0); }
static void dontneed_syscall(void) { advice(MADV_DONTNEED, "DONTNEED", 1); }
static void advise_free(void) { advice(MADV_FREE, "FREE", 0); }
static void advise_remove(void) { advice(MADV_REMOVE, "REMOVE", 0); }
static void wipeonfork(void) { advice(MADV_WIPEONFORK, "WIPEONFORK", 0); }
/* The system call itself, past every function of the C library. */
static long raw_madvise(void *at, size_t length, long kind) {
#ifdef __x86_64__
    long r;
    __asm__ volatile("syscall"
                     : "=a"(r)
                     : "0"((long)SYS_madvise), "D"(at), "S"(length), "d"(kind)
                     : "rcx", "r11", "memory");
    return r;
#else
    register long call __asm__("x8") = SYS_madvise, x0 __asm__("x0") = (long)at, x1 __asm__("x1") = (long)length;
    register long x2 __asm__("x2") = kind;
    __asm__ volatile("svc #0" : "+r"(x0) : "r"(call), "r"(x1), "r"(x2) : "memory");
    return x0;
#endif
}

void __explicit_bzero_chk(void *, size_t, size_t);

/* What is erased is gone, even for a discard that no guard sees. */
static void erased(void) {
    unsigned char *at = filled(8 * M);
    freeze();
    explicit_bzero(at + 3 * M + 100, 64);
    __explicit_bzero_chk(at + 6 * M + 4000, 200, (size_t)-1);
    show("erased", at, 8 * M);
    fork_and_show("elsewhere", at, 8 * M);
    result("DONTNEED", raw_madvise(at + 3 * M, 4096, MADV_DONTNEED));
    result("DONTNEED", raw_madvise(at + 6 * M, 8192, MADV_DONTNEED));
    show("discarded", at, 8 * M);
    fork_and_show("at last", at, 8 * M);
}

static void dontfork(void) {
    unsigned char *at = filled(4 * M);
    freeze();
    result("DONTFORK", madvise(at, 1 * M, MADV_DONTFORK));
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) { volatile unsigned char *v = at; _exit(v[0]); }
    printf("child %d\n", reap(child));
    result("DOFORK", madvise(at, 1 * M, MADV_DOFORK));
    fork_and_show("again", at, 4 * M);
}
static void other_advice(void) {
    static const int kinds[] = { MADV_NORMAL, MADV_RANDOM, MADV_SEQUENTIAL, MADV_WILLNEED, MADV_DONTDUMP, MADV_DODUMP,
        MADV_HUGEPAGE, MADV_NOHUGEPAGE, MADV_KEEPONFORK, MADV_COLD, 12345 };
    unsigned char *at = filled(8 * M);
    freeze();
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        printf("advice %d ", kinds[i]);
        result("", madvise(at, 4 * M, kinds[i]));
        show("after", at, 8 * M);
    }
}
static void dontneed_many(void) {
    unsigned char *at = filled(8 * M);
    freeze();
    for (size_t i = 0; i < 8 * M / 4096; i += 2) if (madvise(at + i * 4096, 4096, MADV_DONTNEED)) die("madvise");
    show("every other page", at, 8 * M);
    for (size_t i = 0; i < 8 * M / 4096; i += 3) at[i * 4096 + 5] = (unsigned char)i;
    fork_and_show("dirtied", at, 8 * M);
    for (size_t i = 1; i < 8 * M / 4096; i += 2) if (madvise(at + i * 4096, 4096, MADV_DONTNEED)) die("madvise");
    fork_and_show("all", at, 8 * M);
}
static void dontneed_over_hole(void) {
    unsigned char *at = filled(8 * M);
    munmap(at + 3 * M, 1 * M);
    freeze();
    result("over a hole", madvise(at + 2 * M, 4 * M, MADV_DONTNEED));
    show("before it", at, 3 * M);
    show("after it", at + 4 * M, 4 * M);
}
static void dontneed_none(void) {
    unsigned char *at = filled(4 * M);
    freeze();
    mprotect(at, 2 * M, PROT_NONE);
    result("of no rights", madvise(at, 3 * M, MADV_DONTNEED));
    mprotect(at, 2 * M, PROT_READ);
    show("after", at, 4 * M);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) { signal(SIGSEGV, SIG_DFL); *(volatile unsigned char *)at = 1; _exit(0); }
    printf("writing: %d\n", reap(child));
}

/* ---- mremap ---- */
static void *remap(const char *what, void *at, size_t old, size_t new, int flags, void *to) {
    void *r = mremap(at, old, new, flags, to);
    int e = errno;
    printf("%s: %s\n", what, r == MAP_FAILED ? strerror(e) : r == at ? "in place" : "moved");
    return r;
}
static void mremap_grow_in_place(void) {
    unsigned char *at = filled(16 * M);
    freeze();
    munmap(at + 4 * M, 12 * M);
    if (remap("grow", at, 4 * M, 12 * M, 0, NULL) == MAP_FAILED) return;
    show("grown", at, 12 * M);
    memset(at + 11 * M, 5, 4096);
    fork_and_show("written", at, 12 * M);
}
static void mremap_move(void) {
    unsigned char *at = filled(4 * M);
    unsigned char *wall = mmap(at + 4 * M, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    (void)wall;
    freeze();
    at[4097] = 200;
    remap("may not move", at, 4 * M, 12 * M, 0, NULL);
    at = remap("may move", at, 4 * M, 12 * M, MREMAP_MAYMOVE, NULL);
    if (at == MAP_FAILED) return;
    show("moved", at, 12 * M);
    fork_and_show("moved", at, 12 * M);
    result("DONTNEED", madvise(at, 2 * M, MADV_DONTNEED));
    show("after", at, 12 * M);
}
static void mremap_shrink_regrow(void) {
    unsigned char *at = filled(8 * M);
    freeze();
    remap("shrink", at, 8 * M, 3 * M, 0, NULL);
    remap("regrow", at, 3 * M, 8 * M, 0, NULL);
    show("regrown", at, 8 * M);
    fork_and_show("regrown", at, 8 * M);
}
static void mremap_chunks(void) {
    unsigned char *at = filled(24 * M);
    freeze();
    at[10 * M] = 1;
    unsigned char *to = mmap(NULL, 64 * M, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    at = remap("many chunks", at, 24 * M, 40 * M, MREMAP_MAYMOVE | MREMAP_FIXED, to);
    if (at == MAP_FAILED) return;
    show("moved", at, 40 * M);
    at[30 * M] = 1;
    fork_and_show("moved", at, 40 * M);
}
static void mremap_half_frozen(void) {
    unsigned char *at = mmap(NULL, 16 * M, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(at, 3, 5 * M);
    freeze();
    at[12 * M] = 9;
    unsigned char *new = remap("half frozen", at, 16 * M, 20 * M, MREMAP_MAYMOVE, NULL);
    if (new == MAP_FAILED) return;
    show("moved", new, 20 * M);
    remap("shrink", new, 20 * M, 2 * M, 0, NULL);
    fork_and_show("shrunk", new, 2 * M);
}
static void mremap_middle(void) {
    unsigned char *at = filled(16 * M);
    unsigned char *to = mmap(NULL, 16 * M, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(to, 1, 16 * M);
    freeze();
    unsigned char *r = mremap(at + 3 * M, 6 * M, 6 * M, MREMAP_MAYMOVE | MREMAP_FIXED, to + 4 * M);
    printf("onto frozen memory: %s\n", r == to + 4 * M ? "there" : strerror(errno));
    show("target", to, 16 * M);
    show("left", at, 3 * M);
    show("right", at + 9 * M, 7 * M);
    result("the middle is gone", msync(at + 5 * M, 4096, MS_ASYNC));
    result("DONTNEED", madvise(to, 8 * M, MADV_DONTNEED));
    fork_and_show("target", to, 16 * M);
}
static void mremap_errors(void) {
    unsigned char *at = filled(8 * M);
    freeze();
    remap("unaligned", at + 1, 4096, 8192, MREMAP_MAYMOVE, NULL);
    remap("to nothing", at, 4 * M, 0, MREMAP_MAYMOVE, NULL);
    remap("fixed but may not move", at, 4 * M, 4 * M, MREMAP_FIXED, at + 4 * M);
    remap("overlapping", at, 4 * M, 4 * M, MREMAP_FIXED | MREMAP_MAYMOVE, at + 2 * M);
    remap("unknown flag", at, 4 * M, 4 * M, 64, NULL);
    munmap(at + 2 * M, 1 * M);
    remap("with a hole", at, 4 * M, 9 * M, MREMAP_MAYMOVE, NULL);
    remap("not mapped", at + 2 * M, 4096, 8192, MREMAP_MAYMOVE, NULL);
    show("left", at, 2 * M);
    show("right", at + 3 * M, 5 * M);
}
static void mremap_dontunmap(void) {
    unsigned char *at = filled(4 * M);
    freeze();
    unsigned char *new = remap("dontunmap", at, 4 * M, 4 * M, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL);
    if (new == MAP_FAILED) return;
    show("new", new, 4 * M);
    show("old", at, 4 * M);
    fork_and_show("old", at, 4 * M);
}
static void mremap_syscall(void) {
    unsigned char *at = filled(4 * M);
    freeze();
    long r = syscall(SYS_mremap, at, 4 * M, 1 * M, 0, 0);
    printf("shrink: %s\n", r == (long)at ? "in place" : "elsewhere");
    r = syscall(SYS_mremap, at, 1 * M, 4 * M, MREMAP_MAYMOVE, 0);
    show("regrown", (unsigned char *)r, 4 * M);
    result("bad", syscall(SYS_mremap, at + 1, 2 * M, 4 * M, 0, 0));
}

/* ---- mmap and munmap ---- */
static void map_fixed(void) {
    unsigned char *at = filled(8 * M);
    freeze();
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    unsigned char *new = mmap(at + 2 * M, 3 * M, PROT_READ | PROT_WRITE, flags, -1, 0);
    printf("fixed: %s\n", new == at + 2 * M ? "there" : "elsewhere");
    show("mapped over", at, 8 * M);
    memset(new, 8, 3 * M);
    result("DONTNEED of the new", madvise(new, 2 * M, MADV_DONTNEED));
    show("after", at, 8 * M);
    result("DONTNEED over both", madvise(at + 1 * M, 5 * M, MADV_DONTNEED));
    fork_and_show("over both", at, 8 * M);
}
static void map_fixed_file(void) {
    char name[] = "/tmp/palimpsest-scenario-XXXXXX";
    int fd = mkstemp(name);
    if (fd < 0) die("mkstemp");
    unlink(name);
    unsigned char buffer[4096];
    memset(buffer, 'f', sizeof buffer);
    for (int i = 0; i < 512; i++) if (write(fd, buffer, sizeof buffer) != sizeof buffer) die("write");
    unsigned char *at = filled(8 * M);
    freeze();
    /* by the name that programs built with _FILE_OFFSET_BITS=64 call */
    unsigned char *new = mmap64(at + 2 * M, 2 * M, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, fd, 0);
    memset(new, 'x', 8192);
    show("file over frozen", at, 8 * M);
    result("DONTNEED over all", madvise(at, 8 * M, MADV_DONTNEED));
    show("file again", new, 2 * M); /* a file's bytes come back, not zeros */
    fork_and_show("all", at, 8 * M);
    result("shared", mmap(at, 1 * M, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == at);
    at[0] = 's';
    result("DONTNEED of shared", madvise(at, 1 * M, MADV_DONTNEED));
    show("shared", at, 8 * M);
}
static void unmap_and_map(void) {
    unsigned char *at = filled(8 * M);
    freeze();
    result("munmap", munmap(at + 1 * M, 4 * M));
    unsigned char *new = mmap(at + 1 * M, 4 * M, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    printf("again: %s\n", new == at + 1 * M ? "there" : "elsewhere");
    show("new", new, 4 * M);
    memset(new, 4, 4 * M);
    result("DONTNEED", madvise(new, 1 * M, MADV_DONTNEED));
    fork_and_show("new", new, 4 * M);
    result("unaligned", munmap(at + 1, 4096));
    result("nothing", munmap(at, 0));
}
static void unmap_unseen(void) {
    /* free() of a mapped block unmaps inside the C library, where nobody sees it. */
    unsigned char *block = malloc(8 * M);
    memset(block, 6, 8 * M);
    freeze();
    uintptr_t place = (uintptr_t)block & ~4095UL;
    free(block);
    unsigned char *new = mmap((void *)place, 4 * M, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(new, 7, 4 * M);
    result("DONTNEED", madvise(new, 2 * M, MADV_DONTNEED));
    fork_and_show("new", new, 4 * M);
}
static void unmap_syscall(void) {
    unsigned char *at = filled(8 * M);
    freeze();
    result("munmap", syscall(SYS_munmap, at + 1 * M, 4 * M));
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    long new = syscall(SYS_mmap, at + 1 * M, 4 * M, PROT_READ | PROT_WRITE, flags, -1, 0);
    printf("again: %s\n", new == (long)(at + 1 * M) ? "there" : "elsewhere");
    show("new", at, 8 * M);
    result("bad offset", syscall(SYS_mmap, 0, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 7));
    result("no descriptor", syscall(SYS_mmap, 0, 4096, PROT_READ, MAP_PRIVATE, 999, 0));
    result("lseek", syscall(SYS_lseek, 999, 0, SEEK_SET));
    result("getppid differs", syscall(SYS_getppid) == getppid());
}
/* Attaches a new segment of three MiB and a byte, and fills it. */
static unsigned char *attach(unsigned char *at, int flags, int via_syscall) {
    int segment = shmget(IPC_PRIVATE, 3 * M + 1, IPC_CREAT | 0600);
    if (segment < 0) die("shmget");
    unsigned char *new = via_syscall ? (void *)syscall(SYS_shmat, segment, at, flags) : shmat(segment, at, flags);
    shmctl(segment, IPC_RMID, NULL);
    printf("attached: %s\n", new == at ? "there" : "elsewhere");
    if (new == (void *)-1) die("shmat");
    memset(new, 3, 3 * M + 1);
    return new;
}
/* A segment is shared memory, wherever it lies: discarding its pages leaves its bytes. */
static void use_segment(unsigned char *new) {
    result("DONTNEED of the segment", madvise(new, 2 * M, MADV_DONTNEED));
    result("DONTNEED of its end", madvise(new + 3 * M, 1, MADV_DONTNEED));
    show("segment", new, 3 * M + 4096);
    fflush(stdout);
    pid_t child = fork();
    if (child < 0) die("fork");
    if (child == 0) { new[1 * M] = 5; _exit(0); }
    printf("child ended with %d\n", reap(child));
    printf("it wrote %d\n", new[1 * M]);
}
static void attaching(int via_syscall) {
    unsigned char *at = filled(12 * M);
    freeze();
    result("munmap", munmap(at + 1 * M, 4 * M));
    unsigned char *new = attach(at + 1 * M, 0, via_syscall);
    use_segment(new);
    result("DONTNEED over both", madvise(at, 2 * M, MADV_DONTNEED));
    show("both", at, 4 * M);
    unsigned char *other = attach(at + 6 * M, SHM_REMAP, via_syscall);
    use_segment(other);
    result("shmdt", shmdt(new));
    result("shmdt", shmdt(other));
    result("shmdt again", shmdt(other));
    result("no segment", (long)(via_syscall ? (void *)syscall(SYS_shmat, -1, 0, 0) : shmat(-1, NULL, 0)));
    /* What lies behind it is frozen as before. */
    result("DONTNEED behind", madvise(at + 10 * M, 1 * M, MADV_DONTNEED));
    fork_and_show("behind", at + 10 * M, 2 * M);
}
static void attached(void) { attaching(0); }
static void attached_syscall(void) { attaching(1); }
static void map_errors(void) {
    filled(4 * M);
    freeze();
    result("no length", (long)mmap(NULL, 0, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    result("no kind", (long)mmap(NULL, 4096, PROT_READ, MAP_ANONYMOUS, -1, 0));
    result("no descriptor", (long)mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, 999, 0));
    result("bad offset", (long)mmap64(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 7));
    unsigned char *at = filled(1 * M);
    result("noreplace", (long)mmap(at, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0));
}

/* ---- locking ---- */
static long field(const char *name) {
    char line[256];
    long value = -1;
    FILE *f = fopen("/proc/self/status", "r");
    if (!f) return -1;
    while (fgets(line, sizeof line, f)) if (!strncmp(line, name, strlen(name))) value = atol(line + strlen(name) + 1);
    fclose(f);
    return value;
}
static void locking(void) {
    unsigned char *at = filled(4 * M);
    freeze();
    at[0] = 1;
    result("mlock", mlock(at, 2 * M));
    printf("locked kB: %ld\n", field("VmLck:"));
    show("locked", at, 4 * M);
    fork_and_show("locked", at, 4 * M);
    result("munlock", munlock(at, 2 * M));
    result("mlock2", mlock2(at + 2 * M, 1 * M, MLOCK_ONFAULT));
    result("mlock2 flags", mlock2(at, 4096, 8));
    result("mlock of nothing", mlock((void *)4096, 4096));
    result("mlock by syscall", syscall(SYS_mlock, at, 4096));
    result("mlock2 by syscall", syscall(SYS_mlock2, at, 4096, 0));
    fork_and_show("at last", at, 4 * M);
}
static void locking_all(void) {
    unsigned char *at = filled(4 * M);
    freeze();
    result("mlockall flags", mlockall(64));
    result("mlockall", mlockall(MCL_CURRENT));
    show("locked", at, 4 * M);
    fork_and_show("locked", at, 4 * M);
    munlockall();
    result("mlockall future", mlockall(MCL_FUTURE));
    unsigned char *new = filled(1 * M);
    fork_and_show("new", new, 1 * M);
    result("by syscall", syscall(SYS_mlockall, MCL_CURRENT | MCL_ONFAULT));
    fork_and_show("again", at, 4 * M);
}

static void locked_future(void) {
    unsigned char *at = filled(8 * M);
    result("mlockall future", mlockall(MCL_FUTURE));
    fork_and_show("locked", at, 8 * M);
    result("DONTNEED", madvise(at, 1 * M, MADV_DONTNEED));
    fork_and_show("discarded", at, 8 * M);
    unsigned char *new = filled(1 * M);
    fork_and_show("new", new, 1 * M);
}
/* Programs at the limit of descriptors go on managing their memory. */
static void crowded(void) {
    unsigned char *at = filled(8 * M);
    freeze();
    struct rlimit few = { 200, 200 };
    if (setrlimit(RLIMIT_NOFILE, &few)) die("setrlimit");
    while (dup(0) >= 0) {}
    printf("%s\n", strerror(errno));
    result("DONTNEED", madvise(at, 1 * M, MADV_DONTNEED));
    fork_and_show("discarded", at, 8 * M);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        result("child, DONTNEED", madvise(at + 1 * M, 1 * M, MADV_DONTNEED));
        show("child", at, 8 * M);
        fflush(stdout);
        _exit(0);
    }
    printf("child ended with %d\n", reap(child));
    show("parent", at, 8 * M);
}

/* ---- rights ---- */
static void protect(void) {
    unsigned char *at = filled(8 * M);
    freeze();
    result("none", mprotect(at + 1 * M, 3 * M, PROT_NONE));
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) { signal(SIGSEGV, SIG_DFL); _exit(*(volatile unsigned char *)(at + 2 * M)); }
    printf("reading: %d\n", reap(child));
    result("back", mprotect(at + 1 * M, 3 * M, PROT_READ | PROT_WRITE));
    at[2 * M + 3] = 99;
    fork_and_show("back", at, 8 * M);
    result("read only", mprotect(at, 8 * M, PROT_READ));
    result("DONTNEED", madvise(at, 1 * M, MADV_DONTNEED));
    fork_and_show("read only", at, 8 * M);
    result("executable", mprotect(at + 4 * M, 4096, PROT_READ | PROT_EXEC));
}

/* ---- brk ---- */
static void breaking(void) {
    unsigned char *start = sbrk(0);
    start = (unsigned char *)(((uintptr_t)start + 4095) & ~4095UL);
    if (brk(start + 8 * M)) die("brk");
    memset(start, 5, 8 * M);
    freeze();
    result("grow", brk(start + 12 * M));
    show("grown", start, 12 * M);
    result("shrink", brk(start + 3 * M));
    result("regrow", brk(start + 10 * M));
    show("regrown", start, 10 * M);
    memset(start + 4 * M, 6, 1 * M);
    fork_and_show("written", start, 10 * M);
    result("back", brk(start));
    result("malloc works", malloc(100000) != NULL);
    fork_and_show("at last", sbrk(0) - 4096, 4096);
}

/* ---- malloc ---- */
static void *blocks[4096];
static unsigned long bad_bytes(unsigned char *at, size_t length) {
    unsigned long bad = 0;
    for (size_t i = 0; i < length; i++) bad += at[i] != 0;
    return bad;
}
static void callocs(void) {
    static const size_t sizes[] = { 100, 4000, 20000, 64 * K, 200 * K, 1 * M, 3 * M };
    unsigned long bad = 0;
    for (int round = 0; round < 3; round++) {
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
            size_t count = 16 * M / sizes[s] > 1024 ? 1024 : 16 * M / sizes[s];
            for (size_t i = 0; i < count; i++) { blocks[i] = malloc(sizes[s]); memset(blocks[i], 0xAA, sizes[s]); }
            if (round == 0 && s == 3) freeze();
            for (size_t i = 0; i < count; i++) free(blocks[i]);
            if (s % 2) usleep(20000); /* allocators that give memory back by time */
            for (size_t i = 0; i < count; i++) {
                blocks[i] = calloc(1, sizes[s]);
                bad += bad_bytes(blocks[i], sizes[s]);
                memset(blocks[i], 0xBB, sizes[s]);
            }
            for (size_t i = 0; i < count; i += 2) free(blocks[i]);
            if (round == 1) freeze();
            for (size_t i = 1; i < count; i += 2) free(blocks[i]);
        }
        freeze();
    }
    printf("bytes that are not zero: %lu\n", bad);
}
static void reallocs(void) {
    unsigned char *block = malloc(8 * M);
    memset(block, 1, 8 * M);
    unsigned char *other = malloc(4 * M);
    memset(other, 2, 4 * M);
    freeze();
    block = realloc(block, 16 * M);
    memset(block + 8 * M, 3, 8 * M);
    show("grown", block, 16 * M);
    block = realloc(block, 2 * M);
    block = realloc(block, 40 * M);
    memset(block + 2 * M, 4, 38 * M);
    other = realloc(other, 5 * M);
    show("other", other, 4 * M);
    fork_and_show("at last", block, 40 * M);
    free(block);
    free(other);
    unsigned char *zeros = calloc(1, 40 * M);
    printf("bytes that are not zero: %lu\n", bad_bytes(zeros, 40 * M));
}

/* ---- forks ---- */
static void nested(void) {
    unsigned char *at = filled(8 * M);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        at[100] = 1;
        madvise(at + 2 * M, 1 * M, MADV_DONTNEED);
        show("child", at, 8 * M);
        fflush(stdout);
        pid_t grandchild = fork();
        if (grandchild == 0) {
            at[200] = 2;
            madvise(at, 1 * M, MADV_DONTNEED);
            show("grandchild", at, 8 * M);
            fork_and_show("fourth", at, 8 * M);
            fflush(stdout);
            _exit(7);
        }
        printf("grandchild ended with %d\n", reap(grandchild));
        show("child", at, 8 * M);
        fflush(stdout);
        _exit(6);
    }
    at[300] = 3;
    printf("child ended with %d\n", reap(child));
    show("parent", at, 8 * M);
    fork_and_show("parent", at, 8 * M);
}
static void many_forks(void) {
    unsigned char *at = filled(32 * M);
    uint64_t expected = 0;
    for (int i = 0; i < 300; i++) {
        for (int j = 0; j < 1 + i % 40; j++) {
            at[((size_t)(i * 7919 + j * 104729) * 4096 + (size_t)i) % (32 * M)] = (unsigned char)(i + j);
        }
        if (i % 17 == 0) madvise(at + (size_t)(i % 30) * M, 1 * M, MADV_DONTNEED);
        if (i % 60 == 0) expected ^= sum(at, 32 * M);
        pid_t child = fork();
        if (child == 0) _exit(i % 60 == 0 ? (int)(sum(at, 32 * M) & 127) : at[4096 * 3]);
        int want = i % 60 == 0 ? (int)(sum(at, 32 * M) & 127) : at[4096 * 3];
        if (reap(child) != want) printf("fork %d: wrong\n", i);
    }
    printf("sums %016llx\n", (unsigned long long)expected);
    show("at last", at, 32 * M);
}
static unsigned char *shared_at;
static volatile int stop_threads;
static void *counter(void *n) {
    uint64_t *place = n;
    uint64_t own = 0;
    while (!stop_threads) { *place += 1; own++; }
    return (void *)(uintptr_t)(own == *place);
}
static void threads(void) {
    pthread_t t[2];
    shared_at = filled(8 * M);
    uint64_t *places[2] = { (uint64_t *)(shared_at + 1 * M), (uint64_t *)(shared_at + 5 * M) };
    *places[0] = *places[1] = 0;
    for (int i = 0; i < 2; i++) if (pthread_create(&t[i], NULL, counter, places[i])) die("pthread_create");
    usleep(20000);
    for (int i = 0; i < 5; i++) freeze();
    stop_threads = 1;
    for (int i = 0; i < 2; i++) {
        void *all_there;
        pthread_join(t[i], &all_there);
        printf("no increment lost: %d\n", (int)(uintptr_t)all_there);
    }
    *places[0] = *places[1] = 0;
    fork_and_show("after", shared_at, 8 * M);
}
/* More than is discarded by writing zeros to it, for which memory can be written to for a moment. */
#define DISCARDED (20 * 4096UL)
static volatile unsigned long discards;
static void *discarding(void *at) {
    while (!stop_threads) { if (madvise(at, DISCARDED, MADV_DONTNEED)) die("madvise"); discards++; }
    return NULL;
}
static void protect_raced(void) {
    pthread_t other;
    unsigned char *at = filled(8 * M);
    freeze();
    int zeros = open("/dev/zero", O_RDONLY);
    if (zeros < 0 || pthread_create(&other, NULL, discarding, at)) die("a thread");
    int written = 0;
    for (int i = 0; i < 300; i++) {
        if (mprotect(at, 1 * M, PROT_READ | PROT_WRITE) || mprotect(at, 1 * M, PROT_READ)) die("mprotect");
        unsigned long now = discards;
        while (discards < now + 2) sched_yield();
        for (size_t page = 0; page < DISCARDED; page += 4096) written += read(zeros, at + page, 1) == 1;
    }
    stop_threads = 1;
    pthread_join(other, NULL);
    printf("written to what is read-only: %d\n", written);
    show("after", at, 8 * M);
}
static void forking_handler(int signal) {
    (void)signal;
    pid_t child = fork();
    if (child == 0) { unsigned char *v = shared_at; _exit(v[4096] % 100); }
    int status;
    waitpid(child, &status, 0);
    char text[] = "handler: child 00\n";
    text[15] = (char)('0' + WEXITSTATUS(status) / 10);
    text[16] = (char)('0' + WEXITSTATUS(status) % 10);
    if (write(1, text, sizeof text - 1) < 0) _exit(98);
}
static volatile sig_atomic_t handled, went_wrong;
static void quiet_handler(int signal) {
    (void)signal;
    int status = 0;
    pid_t child = fork();
    if (child == 0) _exit(((volatile unsigned char *)shared_at)[4096]);
    waitpid(child, &status, 0);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != shared_at[4096]) went_wrong = went_wrong + 1;
    handled = handled + 1;
}
static void fork_in_handler(void) {
    shared_at = filled(8 * M);
    signal(SIGUSR1, forking_handler);
    raise(SIGUSR1);
    shared_at[5000] = 1;
    raise(SIGUSR1);
    fork_and_show("after", shared_at, 8 * M);
}
static void fork_in_malloc(void) {
    /* Signals come at any point of malloc and free; the first fork is in a handler. */
    shared_at = filled(4 * M);
    signal(SIGVTALRM, quiet_handler);
    struct itimerval often = { { 0, 2000 }, { 0, 2000 } };
    setitimer(ITIMER_VIRTUAL, &often, NULL);
    while (handled < 20) {
        for (int i = 0; i < 200; i++) { blocks[i] = malloc(1000 + (size_t)i * 100); memset(blocks[i], 1, 1000); }
        for (int i = 0; i < 200; i++) free(blocks[i]);
    }
    struct itimerval off = { { 0, 0 }, { 0, 0 } };
    setitimer(ITIMER_VIRTUAL, &off, NULL);
    printf("children that went wrong: %d\n", (int)went_wrong);
}
static void close_all(void) {
    unsigned char *at = filled(16 * M);
    freeze();
    at[0] = 77;
    fflush(stdout);
    int out = dup2(1, 5);
    close_range(6, ~0U, 0);
    closefrom(6);
    for (int i = 10; i < 200; i++) dup2(out, i); /* the numbers are taken by something else */
    for (int i = 0; i < 40; i++) {
        for (int j = 0; j < 64; j++) at[(size_t)(i * 64 + j) * 4096 % (16 * M)] = (unsigned char)(i + j);
        freeze();
    }
    result("DONTNEED", madvise(at + 1 * M, 3 * M, MADV_DONTNEED));
    fork_and_show("after", at, 16 * M);
    struct rlimit few = { 32, 32 };
    setrlimit(RLIMIT_NOFILE, &few);
    fork_and_show("few descriptors", at, 16 * M);
}
static void executing(void) {
    filled(4 * M);
    freeze();
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        execlp("sh", "sh", "-c", "echo in the shell; (echo in its child); ls /proc/self/fd | wc -l", NULL);
        _exit(1);
    }
    printf("shell ended with %d\n", reap(child));
    fflush(stdout);
    child = vfork();
    if (child == 0) { execlp("true", "true", NULL); _exit(1); }
    printf("true ended with %d\n", reap(child));
}
static void errnos(void) {
    /* A fork that succeeds leaves errno alone, whatever the object does meanwhile: plain, freezing, and frozen. */
    filled(4 * M);
    for (int i = 0; i < 3; i++) {
        fflush(stdout);
        errno = 1000 + i;
        pid_t child = fork();
        int e = errno;
        if (child == 0) { printf("child %d\n", e); fflush(stdout); _exit(0); }
        reap(child);
        printf("parent %d\n", e);
    }
}
static int frozen_mappings(const unsigned char *at, size_t length) {
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];
    int count = 0;
    if (!maps) die("maps");
    while (fgets(line, sizeof line, maps)) {
        unsigned long start, end;
        if (sscanf(line, "%lx-%lx", &start, &end) == 2 && start < (unsigned long)at + length && end > (unsigned long)at)
            count += strstr(line, "palimpsest") != NULL;
    }
    fclose(maps);
    return count;
}
static void locking_thaws(void) {
    /* Not compared: the test reads it. Frozen memory that is locked would be held twice. */
    /* With memory between them that cannot be locked. */
    unsigned char *at = mmap(NULL, 33 * M, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *apart = at + 17 * M;
    if (at == MAP_FAILED) die("mmap");
    int rights = PROT_READ | PROT_WRITE;
    if (mprotect(at, 16 * M, rights) || mprotect(apart, 16 * M, rights)) die("mprotect");
    memset(at, 1, 16 * M), memset(apart, 2, 16 * M);
    freeze();
    printf("frozen: %d\n", frozen_mappings(at, 16 * M) > 0);
    if (mlock(at + 4 * M, 4096)) die("mlock");
    printf("after mlock: %d\n", frozen_mappings(at + 4 * M, 4096));
    if (mlock2(at + 8 * M, 4096, 0)) die("mlock2");
    printf("after mlock2: %d\n", frozen_mappings(at + 8 * M, 4096));
    if (syscall(SYS_mlock, at + 12 * M, 4096L)) die("syscall");
    printf("after syscall: %d\n", frozen_mappings(at + 12 * M, 4096));
    printf("elsewhere: %d %d\n", frozen_mappings(at, 4096), frozen_mappings(apart, 4096));
    uint64_t before = sum(at, 16 * M) + sum(apart, 16 * M);
    int locked = mlock(at, 33 * M);
    printf("both: %d, %d %d\n", locked, frozen_mappings(at, 16 * M), frozen_mappings(apart, 16 * M));
    printf("same: %d\n", sum(at, 16 * M) + sum(apart, 16 * M) == before);
}
static void erased_elsewhere(void) {
    /* Not compared: the test reads it. The bytes are in the extent, although nothing of it lies there now. */
    unsigned char *at = filled(8 * M);
    freeze();
    /* Extents end where huge pages do. */
    unsigned char *secret = at + 2 * M - (uintptr_t)at % (2 * M) + 1 * M, *before = secret - 4096;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    if (mmap(secret, 4096, PROT_READ | PROT_WRITE, flags, -1, 0) == MAP_FAILED) die("mmap");
    printf("frozen: %d %d\n", frozen_mappings(before, 4096), frozen_mappings(secret, 4096));
    explicit_bzero(secret + 100, 16);
    printf("after erasing: %d, elsewhere: %d\n", frozen_mappings(before, 3 * 4096), frozen_mappings(at, 8 * M) > 0);
}
static void secure(void) {
    /* Not compared: the test reads it. */
    printf("secure: %lu\n", getauxval(AT_SECURE));
    unsigned char *at = filled(8 * M);
    freeze();
    printf("frozen: %d\n", frozen_mappings(at, 8 * M) > 0);
}
static void vforking(void) {
    unsigned char *at = filled(4 * M);
    freeze();
    pid_t child = vfork();
    if (child == 0) { at[0] = 123; _exit(9); }
    printf("vfork: %d, %d\n", reap(child), at[0]);
    fork_and_show("after", at, 4 * M);
}
static void piping(void) {
    unsigned char *at = filled(4 * M);
    freeze();
    char line[64] = "";
    FILE *p = popen("echo from a pipe", "r");
    if (!p || !fgets(line, sizeof line, p)) die("popen");
    printf("%s%d\n", line, pclose(p));
    fflush(stdout);
    printf("system: %d\n", system("exit 3"));
    pid_t child;
    char *arguments[] = { "true", NULL };
    char *environment[] = { NULL };
    result("posix_spawn", posix_spawnp(&child, "true", NULL, NULL, arguments, environment));
    printf("spawned: %d\n", reap(child));
    fork_and_show("after", at, 4 * M);
}
static void *commanding(void *unused) {
    system("exec sleep 1000");
    return unused;
}
static void cancelled_command(void) {
    unsigned char *at = filled(4 * M);
    freeze();
    pthread_t thread;
    void *end = NULL;
    if (pthread_create(&thread, NULL, commanding, NULL)) die("thread");
    pthread_cancel(thread);
    pthread_join(thread, &end);
    printf("canceled: %d\n", end == PTHREAD_CANCELED);
    fflush(stdout);
    printf("system: %d\n", system("exit 3"));
    fork_and_show("after", at, 4 * M);
}
/* Calls of a thread that somebody has cancelled: they are no places where it ends. */
static unsigned char *secret;
static pid_t child_of_cancelled;
static void *forking_cancelled(void *unused) {
    pthread_cancel(pthread_self());
    child_of_cancelled = fork();
    if (child_of_cancelled == 0) {
        int state = -1;
        pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
        _exit(state == PTHREAD_CANCEL_ENABLE ? 5 : 6);
    }
    printf("forked\n");
    pthread_testcancel();
    return unused;
}
static void *calling_cancelled(void *unused) {
    pthread_cancel(pthread_self());
    char *const arguments[] = { "true", NULL };
    result("posix_spawnp", posix_spawnp(&child_of_cancelled, "true", NULL, NULL, arguments, environ));
    result("execv", execv("/nonexistent", arguments));
    explicit_bzero(secret, 4096);
    result("WIPEONFORK", madvise(secret + 6 * M, M, MADV_WIPEONFORK));
    mlock(secret + 3 * M, 4096); /* may be refused */
    unsigned char *moved = mremap(secret + 4 * M, M, M, MREMAP_MAYMOVE | 4 /* DONTUNMAP */, NULL);
    printf("moved: %d\n", moved != MAP_FAILED);
    forking_cancelled(unused);
    return unused;
}
/* While there is another thread, only a child can forget what was erased. */
static void *erasing_cancelled(void *unused) {
    explicit_bzero(secret, 4096);
    return forking_cancelled(unused);
}
static void join_cancelled(void *(*what)(void *), int status) {
    pthread_t thread;
    void *end = NULL;
    fflush(stdout);
    if (pthread_create(&thread, NULL, what, NULL)) die("thread");
    pthread_join(thread, &end);
    printf("canceled: %d\n", end == PTHREAD_CANCELED);
    if (child_of_cancelled > 0) printf("child: %d\n", reap(child_of_cancelled) == status);
}
static void cancelled_fork(void) {
    unsigned char *at = filled(8 * M);
    join_cancelled(forking_cancelled, 5);
    fork_and_show("after", at, 8 * M);
}
static void cancelled_calls(void) {
    secret = filled(8 * M);
    freeze();
    join_cancelled(calling_cancelled, 5);
    fork_and_show("after", secret, 1 * M);
}
static void cancelled_erasing(void) {
    secret = filled(8 * M);
    freeze();
    join_cancelled(erasing_cancelled, 5);
    fork_and_show("after", secret, 8 * M);
}
static int at_fork_calls[3];
static void before_fork(void) { at_fork_calls[0]++; }
static void in_parent(void) { at_fork_calls[1]++; }
static void in_child(void) { at_fork_calls[2]++; }
static void atforks(void) {
    unsigned char *at = filled(4 * M);
    pthread_atfork(before_fork, in_parent, in_child);
    freeze();
    fork_and_show("memory", at, 4 * M);
    printf("%d %d %d\n", at_fork_calls[0], at_fork_calls[1], at_fork_calls[2]);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        printf("in the child %d %d %d\n", at_fork_calls[0], at_fork_calls[1], at_fork_calls[2]);
        fflush(stdout);
        _exit(0);
    }
    reap(child);
}
static void limits(void) {
    struct rlimit small = { 1 * M, 1 * M };
    unsigned char *at = filled(8 * M);
    setrlimit(RLIMIT_FSIZE, &small);
    freeze();
    at[5] = 1;
    fork_and_show("file size", at, 8 * M);
    struct rlimit none = { 0, 0 };
    setrlimit(RLIMIT_NOFILE, &none);
    fork_and_show("no descriptors", at, 8 * M);
}
static void core_filter(void) {
    /* Not compared: the test reads it. */
    filled(8 * M);
    freeze();
    char text[16] = "";
    int fd = open("/proc/self/coredump_filter", O_RDONLY);
    if (fd < 0 || read(fd, text, sizeof text - 1) < 0) die("coredump_filter");
    printf("filter %s", text);
}
static void own_filter(const char *what) {
    char text[16] = "";
    int fd = open("/proc/self/coredump_filter", O_RDONLY);
    if (fd < 0 || read(fd, text, sizeof text - 1) < 0) die("coredump_filter");
    close(fd);
    printf("%s: %s", what, text);
    fflush(stdout);
}
static void core_filter_executed(void) {
    /* Not compared: the test reads it. */
    static const char path[] = "/bin/cat", file[] = "/proc/self/coredump_filter";
    char *arguments[] = { "cat", (char *)file, NULL };
    static const char *const ways[] = { "execve", "execv", "execvp", "execvpe", "execl", "execlp", "execle", "fexecve",
        "execveat", "syscall", "vfork", "posix_spawn", "posix_spawnp", "system", "popen" };
    filled(4 * M);
    freeze();
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        printf("%s: ", ways[i]);
        fflush(stdout);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        pid_t child = 0;
        if (i < 10) {
            child = fork();
            if (child == 0) {
                switch (i) {
                case 0: execve(path, arguments, environ); break;
                case 1: execv(path, arguments); break;
                case 2: execvp("cat", arguments); break;
                case 3: execvpe("cat", arguments, environ); break;
                case 4: execl(path, "cat", file, NULL); break;
                /* More arguments than registers. */
                case 5: execlp("cat", "cat", "-u", "-u", "-u", "-u", "-u", "-u", file, NULL); break;
                case 6: execle(path, "cat", "-u", "-u", "-u", "-u", "-u", "-u", file, NULL, environ); break;
                case 7: fexecve(fd, arguments, environ); break;
                case 8: execveat(fd, "", arguments, environ, AT_EMPTY_PATH); break;
                case 9: syscall(SYS_execve, path, arguments, environ); break;
                }
                _exit(99);
            }
        } else if (i == 10) {
            child = vfork();
            if (child == 0) { execve(path, arguments, environ); _exit(99); }
        } else if (i == 11) {
            if (posix_spawn(&child, path, NULL, NULL, arguments, environ)) die("posix_spawn");
        } else if (i == 12) {
            if (posix_spawnp(&child, "cat", NULL, NULL, arguments, environ)) die("posix_spawnp");
        } else if (i == 13) {
            if (system("cat /proc/self/coredump_filter")) die("system");
        } else {
            char line[64] = "";
            FILE *p = popen("cat /proc/self/coredump_filter", "r");
            if (!p || !fgets(line, sizeof line, p) || pclose(p)) die("popen");
            printf("%s", line);
        }
        if (child && reap(child)) die(ways[i]);
        if (i == 10) madvise(arguments, 0, MADV_NORMAL); /* the next call that is seen */
        close(fd);
        own_filter("afterwards");
    }
    printf("failed: %d\n", execl("/nonexistent", "nonexistent", NULL));
    freeze();
    own_filter("afterwards");
    /* What the program sets itself stays. */
    int fd = open("/proc/self/coredump_filter", O_WRONLY);
    if (write(fd, "3", 1) != 1) die("write");
    printf("its own: ");
    fflush(stdout);
    execl(path, "cat", file, NULL);
}
static void no_standard_error(void) {
    /* Number 2 is a data file of the program when it forks. */
    char name[] = "/tmp/palimpsest-scenario-XXXXXX";
    close(2);
    int fd = mkstemp(name);
    unlink(name);
    filled(4 * M);
    pthread_t t;
    pthread_create(&t, NULL, counter, filled(4096));
    freeze();
    stop_threads = 1;
    pthread_join(t, NULL);
    printf("descriptor %d has %ld bytes\n", fd, (long)lseek(fd, 0, SEEK_END));
}
static void sandboxed(void) {
    /* A filter that allows everything: nobody can tell by looking at its number. */
    struct sock_filter all = { BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW };
    struct sock_fprog filter = { 1, &all };
    unsigned char *at = filled(8 * M);
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    result("filter", prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter));
    freeze();
    fork_and_show("after", at, 8 * M);
}
static int by_prctl(struct sock_fprog *filter) { return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, filter); }
/* As libseccomp does. */
static int by_syscall(struct sock_fprog *filter) {
    return (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, filter);
}
static int by_syscall_prctl(struct sock_fprog *filter) {
    return (int)syscall(SYS_prctl, PR_SET_SECCOMP, SECCOMP_MODE_FILTER, filter);
}
static void forbid_to_open(int (*set)(struct sock_fprog *)) {
    struct sock_filter no_files[] = {
        { BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(struct seccomp_data, nr) },
#ifdef SYS_open
        { BPF_JMP | BPF_JEQ | BPF_K, 1, 0, SYS_open },
#endif
        { BPF_JMP | BPF_JEQ | BPF_K, 0, 1, SYS_openat },
        { BPF_RET | BPF_K, 0, 0, SECCOMP_RET_KILL_PROCESS },
        { BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW },
    };
    struct sock_fprog filter = { sizeof no_files / sizeof *no_files, no_files };
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    result("filter", set(&filter));
}
static void forks_confined(int (*set)(struct sock_fprog *)) {
    unsigned char *at = filled(8 * M);
    forbid_to_open(set);
    fork_and_show("after", at, 8 * M);
}
static void *confining_cancelled(void *unused) {
    pthread_cancel(pthread_self());
    forbid_to_open(by_prctl);
    pthread_testcancel();
    return unused;
}
static void cancelled_filter(void) {
    filled(8 * M);
    join_cancelled(confining_cancelled, 0);
}
static void confined_forks(void) { forks_confined(by_prctl); }
static void confined_by_syscall(void) { forks_confined(by_syscall); }
static void confined_by_syscall_prctl(void) { forks_confined(by_syscall_prctl); }
static void confined_after_fork(void) {
    /* From then on the peak of resident memory is above what is resident, and does not grow. */
    filled(8 * M);
    munmap(filled(4 * M), 4 * M);
    freeze();
    forbid_to_open(by_prctl);
    freeze();
}
/* The filter ends whoever asks about a segment. */
static void confined_attaches(void) {
    struct sock_filter no_question[] = {
        { BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(struct seccomp_data, nr) },
        { BPF_JMP | BPF_JEQ | BPF_K, 0, 1, SYS_shmctl },
        { BPF_RET | BPF_K, 0, 0, SECCOMP_RET_KILL_PROCESS },
        { BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW },
    };
    struct sock_fprog filter = { sizeof no_question / sizeof *no_question, no_question };
    unsigned char *at = filled(8 * M);
    freeze();
    int segment = shmget(IPC_PRIVATE, 3 * M, IPC_CREAT | 0600);
    unsigned char *first = shmat(segment, NULL, 0);
    if (segment < 0 || first == (void *)-1) die("shmget");
    shmctl(segment, IPC_RMID, NULL); /* stays while it is attached */
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    result("filter", by_prctl(&filter));
    munmap(at + 1 * M, 4 * M);
    unsigned char *new = shmat(segment, at + 1 * M, 0);
    printf("attached: %s\n", new == at + 1 * M ? "there" : "elsewhere");
    memset(new, 3, 3 * M);
    result("DONTNEED of a page", madvise(new, 4096, MADV_DONTNEED));
    madvise(new, 2 * M, MADV_DONTNEED); /* may be refused */
    show("segment", new, 3 * M);
    show("the same", first, 3 * M);
    result("shmdt", shmdt(new));
}
static void confined_executes(void) {
    filled(8 * M);
    freeze();
    forbid_to_open(by_prctl);
    char *const arguments[] = { "none", NULL };
    result("execve", execve("/nonexistent", arguments, environ));
}
static void child_tables(void) {
    /* Not compared: the test reads it. */
    filled(128 * M);
    freeze();
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) { printf("%ld\n", field("VmPTE:")); fflush(stdout); _exit(0); }
    reap(child);
}
static void signalled(void) {
    unsigned char *at = filled(8 * M);
    freeze();
    raise(SIGWINCH); /* without a handler nothing happens */
    fork_and_show("after", at, 8 * M);
}

static unsigned long *rounds_of;
static long wrong_rounds;
static void *write_rounds(void *unused) {
    for (unsigned long round = 0; !stop_threads; round++)
        for (size_t i = 0; i < M / sizeof *rounds_of; i += 8) {
            wrong_rounds += rounds_of[8 * i] != round;
            rounds_of[8 * i] = round + 1;
        }
    return unused;
}
static void vfork_forks(void) {
    /* Not compared: the child of vfork sees no thread but itself, and forks while the parent's other thread writes. */
    rounds_of = (unsigned long *)filled(8 * M);
    memset(rounds_of, 0, 8 * M);
    pthread_t t;
    pthread_create(&t, NULL, write_rounds, NULL);
    for (int i = 0; i < 20; i++) {
        usleep(10 * 1000);
        pid_t child = vfork();
        if (child == 0) {
            if (fork() == 0) _exit(0);
            _exit(0);
        }
        reap(child);
    }
    stop_threads = 1;
    pthread_join(t, NULL);
    printf("%ld stores are lost\n", wrong_rounds);
}
/* A child of vfork that confines itself. */
static void confine_borrower(void) {
    struct sock_filter all[] = { { BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW } };
    struct sock_fprog filter = { 1, all };
    fflush(stdout);
    pid_t child = vfork();
    if (child == 0) {
        prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        _exit(by_prctl(&filter) ? 7 : 0);
    }
    printf("confined: %d\n", reap(child));
}
static void vfork_confines(void) {
    unsigned char *at = filled(8 * M);
    confine_borrower();
    confine_borrower();
    fork_and_show("after", at, 8 * M);
}
static void vfork_confines_in_slices(void) {
    unsigned char *at = filled(64 * M);
    freeze();
    confine_borrower();
    /* Until all is frozen, which is reported: on a busy machine that takes many waits. */
    struct timespec time = { 0, 20 * 1000 * 1000 };
    const char *report = getenv("PALIMPSEST_REPORT");
    int most = getenv("LD_PRELOAD") && report ? 1500 : 4;
    for (int i = 0; i < most && !(report && access(report, F_OK) == 0); i++) nanosleep(&time, NULL);
    fork_and_show("after", at, 64 * M);
}

static void other_waits(void) {
    /* Not compared: behind the object stands one that knows a descriptor of its own. */
    filled(64 * M);
    freeze();
    struct epoll_event event;
    result("epoll", epoll_wait(1000000, &event, 1, 10000));
    struct pollfd one = { 1000000, POLLIN, 0 };
    result("poll", poll(&one, 1, 10000));
    printf("events: %d\n", one.revents == POLLIN);
}
static void other_clock(void) {
    /* Not compared: another object has a clock of its own. */
    filled(64 * M);
    freeze();
    alarm(60);
    struct timespec end, time = { 0, 20 * 1000 * 1000 };
    clock_gettime(CLOCK_MONOTONIC, &end);
    end.tv_nsec += time.tv_nsec;
    end.tv_sec += end.tv_nsec / 1000000000;
    end.tv_nsec %= 1000000000;
    printf("until: %d\n", clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &end, NULL));
    result("for", nanosleep(&time, NULL));
}

static unsigned char *to_discard;
static void *discard_slowly(void *unused) {
    madvise(to_discard, 8 * M, MADV_DONTNEED);
    return unused;
}
static void discard_meanwhile(void) {
    /* Not compared: behind the object stands one that makes madvise slow. */
    to_discard = filled(8 * M);
    pthread_t t;
    pthread_create(&t, NULL, discard_slowly, NULL);
    usleep(300 * 1000);
    freeze();
    pthread_join(t, NULL);
    long wrong = 0;
    for (size_t i = 0; i < 8 * M; i += 4096) wrong += to_discard[i] != 0;
    printf("%ld pages are not zero\n", wrong);
}

static const struct { const char *name; void (*run)(void); } table[] = {
#define S(n) { #n, n }
    S(dontneed), S(dontneed_syscall), S(advise_free), S(advise_remove), S(wipeonfork), S(erased), S(dontfork),
    S(other_advice),
    S(dontneed_many), S(dontneed_over_hole), S(dontneed_none),
    S(mremap_grow_in_place), S(mremap_move), S(mremap_shrink_regrow), S(mremap_chunks), S(mremap_half_frozen),
    S(mremap_middle), S(mremap_errors), S(mremap_dontunmap), S(mremap_syscall),
    S(map_fixed), S(map_fixed_file), S(unmap_and_map), S(unmap_unseen), S(unmap_syscall), S(map_errors), S(attached),
    S(attached_syscall), S(erased_elsewhere),
    S(locking), S(locking_all), S(locked_future), S(crowded), S(protect), S(protect_raced), S(breaking), S(callocs),
    S(reallocs),
    S(errnos), S(locking_thaws), S(secure), S(nested), S(many_forks), S(threads), S(fork_in_handler),
    S(fork_in_malloc), S(close_all), S(executing), S(vforking), S(piping), S(cancelled_command),
    S(cancelled_fork), S(cancelled_calls), S(cancelled_erasing), S(cancelled_filter),
    S(atforks), S(limits), S(core_filter), S(core_filter_executed), S(no_standard_error), S(sandboxed),
    S(confined_forks), S(confined_by_syscall), S(confined_by_syscall_prctl), S(confined_after_fork),
    S(confined_attaches), S(confined_executes), S(child_tables), S(signalled),
    S(discard_meanwhile), S(vfork_forks), S(vfork_confines), S(vfork_confines_in_slices), S(other_waits),
    S(other_clock),
};

int main(int count, char **arguments) {
    static char buffer[1 << 16];
    if (count != 2) return 2;
    setvbuf(stdout, buffer, _IOFBF, sizeof buffer); /* else it is in the heap, where a scenario moves the end */
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        if (!strcmp(arguments[1], table[i].name)) { table[i].run(); fflush(stdout); return 0; }
    }
    fprintf(stderr, "no scenario %s\n", arguments[1]);
    return 2;
}
