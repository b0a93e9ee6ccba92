// Fork servers of AFL++'s protocol (4.x), each with its own environment, take turns with one input: microseconds from
// the order to run to the child's status (least, quartiles), and per run: processor time of server and children,
// page faults of both; and the server's mappings.
//
//     cc -O2 turns.c -o turns && nice -n -19 ./turns RUNS INPUT PROGRAM [NAME=VALUE...] [-- PROGRAM [NAME=VALUE...]]...
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/shm.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 16, MAP = 1 << 18, ORDERS = 198, ANSWERS = 199, SHARED_INPUT = (int)0x81000001, WARM = 50, LOT = 50 };

struct server {
  char *name;
  pid_t process;
  int orders, answers;
  unsigned char *map;
  double *times;
};

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1e6 + time.tv_nsec / 1e3;
}

static void must(int right, const char *what) {
  if (!right) {
    perror(what);
    exit(1);
  }
}

// Children's and own page faults, then ticks of both; then nanoseconds of the server alone.
static void figures(pid_t process, double *into) {
  char path[64], text[1024];
  snprintf(path, sizeof path, "/proc/%d/stat", process);
  FILE *file = fopen(path, "r");
  must(file && fgets(text, sizeof text, file), path);
  fclose(file);
  unsigned long own, majors, children, their_majors, user, system;
  long their_user, their_system;
  must(sscanf(strrchr(text, ')') + 2, "%*c %*d %*d %*d %*d %*d %*u %lu %lu %lu %lu %lu %lu %ld %ld", &own, &children,
              &majors, &their_majors, &user, &system, &their_user, &their_system) == 8, "stat");
  into[0] = children, into[1] = own, into[2] = (their_user + their_system) * 1e6 / sysconf(_SC_CLK_TCK);
  snprintf(path, sizeof path, "/proc/%d/schedstat", process);
  file = fopen(path, "r");
  unsigned long long ran;
  must(file && fscanf(file, "%llu", &ran) == 1, path);
  fclose(file);
  into[3] = ran / 1e3;
}

static int mappings(pid_t process) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/maps", process);
  FILE *file = fopen(path, "r");
  must(file != 0, path);
  int count = 0, byte;
  while ((byte = getc(file)) != EOF) count += byte == '\n';
  fclose(file);
  return count;
}

static void start(struct server *server, char **arguments, int count, char *input) {
  int map = shmget(IPC_PRIVATE, MAP, IPC_CREAT | 0600), text = shmget(IPC_PRIVATE, 1 << 20, IPC_CREAT | 0600);
  must(map >= 0 && text >= 0, "shmget");
  server->map = shmat(map, 0, 0);
  uint32_t *place = shmat(text, 0, 0);
  int file = open(input, O_RDONLY);
  must(file >= 0, input);
  *place = read(file, place + 1, 1 << 19);
  close(file);
  int orders[2], answers[2];
  must(!pipe2(orders, O_CLOEXEC) && !pipe2(answers, O_CLOEXEC), "pipe");
  server->process = fork();
  if (server->process == 0) {
    char name[16];
    snprintf(name, sizeof name, "%d", map), setenv("__AFL_SHM_ID", name, 1);
    snprintf(name, sizeof name, "%d", text), setenv("__AFL_SHM_FUZZ_ID", name, 1);
    snprintf(name, sizeof name, "%d", MAP), setenv("AFL_MAP_SIZE", name, 1);
    setenv("__AFL_DEFER_FORKSRV", "1", 1), setenv("LD_BIND_NOW", "1", 1);
    for (int i = 1; i < count; i++) putenv(arguments[i]);
    dup2(orders[0], ORDERS), dup2(answers[1], ANSWERS);
    execl(arguments[0], arguments[0], (char *)0);
    perror(arguments[0]);
    _exit(1);
  }
  close(orders[0]), close(answers[1]);
  server->orders = orders[1], server->answers = answers[0];
  uint32_t hello, reply = SHARED_INPUT;
  must(read(server->answers, &hello, 4) == 4, "a server's greeting");
  must(write(server->orders, &reply, 4) == 4, "write");
  shmctl(map, IPC_RMID, 0), shmctl(text, IPC_RMID, 0);
}

static double run(struct server *server) {
  memset(server->map, 0, MAP);
  uint32_t killed = 0, answer[2];
  double begun = now();
  must(write(server->orders, &killed, 4) == 4, "write");
  for (int got = 0; got < 8;) {
    int more = read(server->answers, (char *)answer + got, 8 - got);
    must(more > 0, "a run");
    got += more;
  }
  must(answer[1] == 0, "a run that ends well");
  return now() - begun;
}

static int by_value(const void *one, const void *other) {
  double a = *(const double *)one, b = *(const double *)other;
  return (a > b) - (a < b);
}

int main(int count, char **arguments) {
  struct server servers[MOST];
  int contestants = 0, runs = atoi(arguments[1]);
  for (int from = 3; from < count; contestants++) {
    int to = from;
    while (to < count && strcmp(arguments[to], "--")) to++;
    servers[contestants].name = to > from + 1 ? arguments[from + 1] : "";
    char *label = to > from + 1 ? arguments[to - 1] : arguments[from];
    if (!strncmp(label, "LABEL=", 6)) servers[contestants].name = label + 6;
    start(&servers[contestants], arguments + from, to - from, arguments[2]);
    servers[contestants].times = calloc(runs, sizeof(double));
    from = to + 1;
  }
  double before[MOST][4], after[MOST][4];
  for (int i = 0; i < contestants; i++)
    for (int j = 0; j < WARM; j++) run(&servers[i]);
  for (int i = 0; i < contestants; i++) figures(servers[i].process, before[i]);
  // Each in turn, in an order that moves on.
  for (int j = 0; j < runs; j++)
    for (int i = 0; i < contestants; i++) {
      struct server *server = &servers[(i + j) % contestants];
      server->times[j] = run(server);
    }
  for (int i = 0; i < contestants; i++) figures(servers[i].process, after[i]);
  printf("%-34s %6s %6s %6s %6s %6s | %6s %6s | %6s %6s | %s\n", "", "least", "lower", "median", "upper", "ratio",
         "child", "server", "faults", "server", "mappings");
  double base = 0;
  for (int i = 0; i < contestants; i++) {
    double *times = servers[i].times, per[4];
    qsort(times, runs, sizeof *times, by_value);
    for (int j = 0; j < 4; j++) per[j] = (after[i][j] - before[i][j]) / runs;
    if (i == 0) base = times[runs / 4];
    printf("%-34.34s %6.1f %6.1f %6.1f %6.1f %6.3f | %6.1f %6.1f | %6.2f %6.2f | %d\n", servers[i].name, times[0],
           times[runs / 4], times[runs / 2], times[runs * 3 / 4], base / times[runs / 4], per[2], per[3], per[0],
           per[1], mappings(servers[i].process));
    close(servers[i].orders);
    waitpid(servers[i].process, 0, 0);
  }
}
