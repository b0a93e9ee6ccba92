// What an executed program pays for an object in LD_PRELOAD: contestants take turns, and each turn executes PROGRAM
// once.
// Page faults (median), and microseconds from vfork to the end (least, lower quartile, median).
//
//     cc -O2 executed.c -o executed && ./executed ROUNDS PROGRAM OBJECT...     (`-` for no object)

#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 16 };
static char preload[MOST][4096];

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1e6 + time.tv_nsec / 1e3;
}

static int by_value(const void *one, const void *other) {
  double a = *(const double *)one, b = *(const double *)other;
  return (a > b) - (a < b);
}

int main(int count, char **argument) {
  int rounds = atoi(argument[1]), contestants = count - 3;
  if (contestants > MOST) return 2;
  double *faults[MOST], *times[MOST];
  char **environments[MOST];
  size_t variables = 0;
  while (environ[variables]) variables++;
  for (int who = 0; who < contestants; who++) {
    faults[who] = malloc(rounds * sizeof(double));
    times[who] = malloc(rounds * sizeof(double));
    environments[who] = calloc(variables + 4, sizeof(char *));
    memcpy(environments[who], environ, variables * sizeof(char *));
    if (strcmp(argument[3 + who], "-")) {
      snprintf(preload[who], sizeof preload[who], "LD_PRELOAD=%s", argument[3 + who]);
      environments[who][variables] = preload[who];
      // As a program that another has executed below `palimpsest run`.
      environments[who][variables + 1] = "PALIMPSEST_STARTED=1-2";
      environments[who][variables + 2] = "PALIMPSEST_FILTERS=0";
    }
  }
  for (int round = 0; round < rounds; round++) {
    for (int who = 0; who < contestants; who++) {
      char *arguments[] = {argument[2], NULL};
      double begun = now();
      pid_t child = vfork();
      if (child == 0) {
        execve(argument[2], arguments, environments[who]);
        _exit(127);
      }
      int status;
      struct rusage usage;
      wait4(child, &status, 0, &usage);
      times[who][round] = now() - begun;
      faults[who][round] = usage.ru_minflt + usage.ru_majflt;
    }
  }
  for (int who = 0; who < contestants; who++) {
    double *time = times[who];
    qsort(time, rounds, sizeof *time, by_value);
    qsort(faults[who], rounds, sizeof *time, by_value);
    printf("%-50s %3.0f faults, %.1f %.1f %.1f us\n", argument[3 + who], faults[who][rounds / 2], time[0],
           time[rounds / 4], time[rounds / 2]);
  }
}
