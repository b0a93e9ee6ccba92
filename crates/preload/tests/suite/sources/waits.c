// Waits of every kind, with signals, children and descriptors; prints what came of each, and no times.
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MIB = 1 << 20, MEMORY = 64 * MIB };

static unsigned char *memory;
static volatile int handled;
static int efd, pipes[2];

static void fill(int salt) {
    for (size_t at = 0; at < MEMORY; at += 4096) memory[at] = (unsigned char)(at >> 12) ^ salt;
}

static const char *intact(int salt) {
    for (size_t at = 0; at < MEMORY; at += 4096)
        if (memory[at] != ((unsigned char)(at >> 12) ^ salt)) return "lost";
    return "intact";
}

static void on_alarm(int number) {
    (void)number;
    handled++;
    // A handler writes to memory that is being frozen.
    for (size_t at = 0; at < MEMORY; at += 128 << 10) memory[at]++;
    for (size_t at = 0; at < MEMORY; at += 128 << 10) memory[at]--;
}

// Again and again, since the first alarm may come before the wait if others have the CPU; 0 ends it.
static void timer(long micros) {
    struct itimerval time = {{0, micros ? 500000 : 0}, {0, micros}};
    setitimer(ITIMER_REAL, &time, NULL);
}

static long millis(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

// One wait of at most this many milliseconds, or without end; with a mask if there is one.
static int wait_by(int way, int limit, sigset_t *mask, struct timespec *rest) {
    // Those that cannot wait for ever sleep for a thousand seconds.
    int time_limit = limit < 0 ? 1000000 : limit;
    struct timespec time = {time_limit / 1000, time_limit % 1000 * 1000000L}, *until = limit < 0 ? NULL : &time;
    struct timeval value = {time_limit / 1000, time_limit % 1000 * 1000L};
    struct pollfd one = {pipes[0], POLLIN, 0};
    struct epoll_event event;
    fd_set set;
    FD_ZERO(&set);
    FD_SET(pipes[0], &set);
    int answer;
    switch (way) {
    case 0: return epoll_wait(efd, &event, 1, limit);
    case 1: return epoll_pwait(efd, &event, 1, limit, mask);
    case 2: answer = poll(&one, 1, limit); return answer > 0 ? one.revents : answer;
    case 3: answer = ppoll(&one, 1, until, mask); return answer > 0 ? one.revents : answer;
    case 4:
        answer = select(pipes[0] + 1, &set, NULL, NULL, limit < 0 ? NULL : &value);
        if (answer == 0 && (value.tv_sec || value.tv_usec)) printf("time is left\n");
        return answer < 0 ? answer : FD_ISSET(pipes[0], &set) ? answer : -answer;
    case 5:
        answer = pselect(pipes[0] + 1, &set, NULL, NULL, until, mask);
        return answer < 0 ? answer : FD_ISSET(pipes[0], &set) ? answer : -answer;
    case 6: return nanosleep(&time, rest);
    default:
        answer = clock_nanosleep(CLOCK_MONOTONIC, 0, &time, rest);
        errno = answer ? answer : errno;
        return answer ? -1 : 0;
    }
}

static void *canceled(void *unused) {
    (void)unused;
    for (;;) poll(NULL, 0, -1);
}

static void *cancel_main(void *main_thread) {
    void *end;
    // In the wait, or before it: both end the thread there.
    usleep(100000);
    pthread_cancel(*(pthread_t *)main_thread);
    pthread_join(*(pthread_t *)main_thread, &end);
    printf("%s\n", end == PTHREAD_CANCELED ? "main canceled" : "main not canceled");
    exit(0);
}

int main(int count, char **arguments) {
    static pthread_t main_thread;
    int with_thread = count > 1 && !strcmp(arguments[1], "thread");
    // The first kind of wait: most slices are taken in it.
    int first = count > 1 && !with_thread ? atoi(arguments[1]) : 0;
    memory = mmap(NULL, MEMORY, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED || pipe(pipes)) return 1;
    madvise(memory, MEMORY, MADV_NOHUGEPAGE);
    fill(1);
    efd = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN};
    epoll_ctl(efd, EPOLL_CTL_ADD, pipes[0], &event);
    if (with_thread) {
        pthread_t thread;
        pthread_create(&thread, NULL, canceled, NULL);
        usleep(20000);
        if (!fork()) _exit(0);
        wait(NULL);
        usleep(50000);
        pthread_cancel(thread);
        void *end;
        pthread_join(thread, &end);
        printf("%s\n", end == PTHREAD_CANCELED ? "canceled" : "not canceled");
    }
    if (!fork()) _exit(0);
    wait(NULL);
    if (count > 2) {
        pthread_t thread;
        main_thread = pthread_self();
        pthread_create(&thread, NULL, cancel_main, &main_thread);
        wait_by(atoi(arguments[2]), -1, NULL, NULL);
        return 1;
    }
    if (first == 4) {
        // Sets that cannot be read, or not be written.
        struct timeval value = {0, 90000};
        void *unwritable = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        int answer = select(1, (fd_set *)8, NULL, NULL, &value);
        printf("unreadable: %d errno %d\n", answer, errno);
        answer = select(1, unwritable, NULL, NULL, &value);
        printf("unwritable: %d errno %d\n", answer, errno);
    }
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, NULL);
    sigset_t none, alarms, now;
    sigemptyset(&none);
    sigemptyset(&alarms);
    sigaddset(&alarms, SIGALRM);
    for (int number = 0; number < (with_thread ? 8 : 2); number++) {
        int way = (first + number) % 8;
        // The time passes.
        errno = 77;
        long started = millis();
        int answer = wait_by(way, 30, NULL, NULL);
        printf("%d passed: %d errno %d %s\n", way, answer, errno, millis() - started >= 30 ? "waited" : "too early");
        // A handler runs in a wait without end, and ends it.
        handled = 0;
        struct timespec rest = {0, 0};
        timer(7000 + way * 1111);
        errno = 77;
        answer = wait_by(way, -1, NULL, &rest);
        int why = errno, left = way < 6 || (rest.tv_sec > 0 && rest.tv_sec < 1000);
        timer(0);
        printf("%d alarm: %d errno %d handled %d %s\n", way, answer, why, handled > 0, left ? "rest" : "no rest");
        // Only the mask of the wait lets a pending signal in.
        if (way == 1 || way == 3 || way == 5) {
            sigprocmask(SIG_BLOCK, &alarms, NULL);
            handled = 0;
            raise(SIGALRM);
            int before = handled;
            errno = 77;
            answer = wait_by(way, -1, &none, NULL);
            sigprocmask(SIG_SETMASK, NULL, &now);
            printf("%d mask: %d errno %d handled %d then %d, %s\n", way, answer, errno, before, handled,
                   sigismember(&now, SIGALRM) ? "blocked again" : "open");
            handled = 0;
            raise(SIGALRM);
            answer = wait_by(way, 20, NULL, NULL);
            printf("%d own mask: %d handled %d\n", way, answer, handled);
            sigprocmask(SIG_UNBLOCK, &alarms, NULL);
            printf("%d at last: handled %d\n", way, handled);
        }
        // A child's end changes nothing, since nobody handles the signal.
        pid_t child = fork();
        if (!child) {
            printf("%s", intact(1)[0] == 'i' ? "" : "lost in a child\n");
            usleep(3000);
            _exit(0);
        }
        errno = 77;
        answer = wait_by(way, 40, NULL, NULL);
        printf("%d child: %d errno %d\n", way, answer, errno);
        waitpid(child, NULL, 0);
        // Something to read comes from another process.
        if (way < 6) {
            child = fork();
            if (!child) {
                usleep(9000);
                _exit(write(pipes[1], "x", 1) != 1);
            }
            answer = wait_by(way, -1, NULL, NULL);
            char byte;
            printf("%d pipe: %d read %zd\n", way, answer, read(pipes[0], &byte, 1));
            waitpid(child, NULL, 0);
        }
    }
    // What the kernel refuses.
    struct timespec odd = {0, 2000000000};
    int answers[5], errors[5];
    for (int way = 0; way < 5; way++) {
        errno = 0;
        answers[way] = way == 0   ? nanosleep(&odd, NULL)
                       : way == 1 ? clock_nanosleep(CLOCK_MONOTONIC, 0, &odd, NULL)
                       : way == 2 ? ppoll(NULL, 0, &odd, NULL)
                       : way == 3 ? epoll_wait(-1, &event, 1, 10)
                                  : poll((struct pollfd *)8, 1, 10);
        errors[way] = errno;
    }
    for (int way = 0; way < 5; way++) printf("odd %d: %d errno %d\n", way, answers[way], errors[way]);
    fill(2);
    for (int round = 0; round < 200; round++) {
        memory[round * 4096] ^= 2;
        nanosleep(&(struct timespec){0, 1000000}, NULL);
        memory[round * 4096] ^= 2;
    }
    // Until the report comes: how many slices the waits above had time for depends on the machine.
    const char *report = getenv("PALIMPSEST_REPORT");
    for (int round = 0; getenv("LD_PRELOAD") && report && access(report, F_OK) && round < 40000; round++)
        nanosleep(&(struct timespec){0, 20000000}, NULL);
    puts(intact(2));
    return 0;
}
