// What a fork costs with an object in LD_PRELOAD: processes with SIZE bytes, one for each object, take turns to fork a
// child that ends at once. Microseconds of the fork, and of it with the child's end: least of a hundred, lower quartile,
// median. Start it several times: where mappings lie differs from process to process.
//
//     cc -O2 forks.c -o forks && SIZE=2097152 ./forks ROUNDS OBJECT...     (`-` for no object)

#define _GNU_SOURCE
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 16 };

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1e6 + time.tv_nsec / 1e3;
}

static int by_value(const void *one, const void *other) {
  double a = *(const double *)one, b = *(const double *)other;
  return (a > b) - (a < b);
}

static void measured(double taken[2]) {
  double begun = now();
  pid_t child = fork();
  if (child == 0) _exit(0);
  taken[0] = now() - begun;
  waitpid(child, NULL, 0);
  taken[1] = now() - begun;
}

// Forks for each byte that it is sent.
static int contestant(void) {
  size_t size = atol(getenv("SIZE"));
  memset(malloc(size), 1, size);
  double taken[2];
  // Time to look at it, and to gather what there is.
  for (int wait = 0; wait < 8; wait++) {
    poll(NULL, 0, 20);
    if (wait < 3) measured(taken);
  }
  for (char byte; read(0, &byte, 1) == 1;) {
    measured(taken);
    write(1, taken, sizeof taken);
  }
  return 0;
}

int main(int count, char **argument) {
  if (getenv("FORKER")) return contestant();
  int rounds = atoi(argument[1]), contestants = count - 2, to[MOST], from[MOST];
  if (contestants > MOST) return 2;
  double *times[MOST][2];
  for (int who = 0; who < contestants; who++) {
    int asks[2], tells[2];
    pipe(asks);
    pipe(tells);
    for (int which = 0; which < 2; which++) times[who][which] = malloc(rounds * sizeof(double));
    if (fork() == 0) {
      dup2(asks[0], 0);
      dup2(tells[1], 1);
      closefrom(3);
      setenv("FORKER", "1", 1);
      setenv("LD_BIND_NOW", "1", 1);
      if (strcmp(argument[2 + who], "-")) {
        setenv("LD_PRELOAD", argument[2 + who], 1);
        // As a program that another has executed below `palimpsest run`.
        setenv("PALIMPSEST_STARTED", "1-2", 1);
        setenv("PALIMPSEST_FILTERS", "0", 1);
      }
      execl("/proc/self/exe", argument[0], NULL);
      _exit(127);
    }
    close(asks[0]);
    close(tells[1]);
    to[who] = asks[1];
    from[who] = tells[0];
  }
  for (int round = 0; round < rounds; round++) {
    for (int who = 0; who < contestants; who++) {
      double taken[2];
      write(to[who], "x", 1);
      if (read(from[who], taken, sizeof taken) != sizeof taken) return 1;
      for (int which = 0; which < 2; which++) times[who][which][round] = taken[which];
    }
  }
  for (int who = 0; who < contestants; who++) {
    printf("%-40s", argument[2 + who]);
    for (int which = 0; which < 2; which++) {
      double *sorted = times[who][which];
      qsort(sorted, rounds, sizeof *sorted, by_value);
      printf("  %s %.1f %.1f %.1f", which ? "with its end" : "fork", sorted[rounds / 100], sorted[rounds / 4],
             sorted[rounds / 2]);
    }
    printf("\n");
  }
}
