// What the measurements of adapters in C++ share: functions that are loaded one by one, called in turn, and freed.
//
//   PROGRAM [--samples] [FUNCTIONS…]     1000 and 20 000 functions, if no numbers are named
//
// Prints medians and ranges, or with `--samples` a line for each value: id, unit, value. `cargo xtask bench adapters`
// makes records of those.

#ifndef MEASURE_H
#define MEASURE_H

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include "mappings.h"

namespace measure {

constexpr int rounds = 5;
constexpr int calls = 400'000;

inline double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Memory of the process that is present, in bytes.
inline size_t resident() {
  std::ifstream statm("/proc/self/statm");
  size_t all = 0, present = 0;
  statm >> all >> present;
  return present * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

// One round with so many functions.
struct Figures {
  double load_us = 0, call_ns = 0, free_us = 0, bytes = 0, mappings = 0, left = 0;
};

struct Column {
  const char *name;
  const char *unit;
  double Figures::*figure;
};

constexpr Column columns[] = {{"load", "us", &Figures::load_us},
                              {"call", "ns", &Figures::call_ns},
                              {"free", "us", &Figures::free_us},
                              {"bytes", "bytes", &Figures::bytes},
                              {"mappings", "mappings", &Figures::mappings},
                              {"left", "mappings", &Figures::left}};

// Loads functions with `load`, which returns what `call` calls, and frees them with `free`; each is told a number.
template <typename Load, typename Call, typename Free>
Figures load_and_call(size_t count, Load load, Call call, Free free) {
  Figures figures;
  auto each = static_cast<double>(count);
  auto mappings_before = mappings();
  auto resident_before = resident();
  auto start = now();
  for (size_t i = 0; i < count; ++i)
    load(i);
  figures.load_us = (now() - start) * 1e6 / each;
  figures.mappings = static_cast<double>(mappings() - mappings_before) / each;
  long long sum = 0;
  for (size_t i = 0; i < count; ++i)
    sum += call(i, 1);
  // When all have run: before, the views that were written through would count, and those that run would not.
  figures.bytes = (static_cast<double>(resident()) - static_cast<double>(resident_before)) / each;
  // A fixed stride that meets every function: in order, prefetchers would help all.
  size_t stride = 7919 % count, at = 0;
  start = now();
  for (int i = 0; i < calls; ++i) {
    sum += call(at, i);
    at += stride;
    at -= at >= count ? count : 0;
  }
  figures.call_ns = (now() - start) * 1e9 / calls;
  if (sum == 0)
    std::abort();
  start = now();
  for (size_t i = 0; i < count; ++i)
    free(i);
  figures.free_us = (now() - start) * 1e6 / each;
  // Whoever gives nothing back is fast.
  figures.left = (static_cast<double>(mappings()) - static_cast<double>(mappings_before)) / each;
  return figures;
}

// A way to place functions. `run` gets how many, and runs in a process of its own.
struct Way {
  const char *name;
  std::function<Figures(size_t)> run;
};

// Measures in a child, so that none finds the heap and the mappings of another. False if it failed.
inline bool run_apart(const Way &way, size_t count, Figures &figures) {
  int ends[2];
  if (pipe(ends) != 0)
    std::abort();
  std::fflush(stdout);
  auto child = fork();
  if (child < 0)
    std::abort();
  if (child == 0) {
    figures = way.run(count);
    _exit(write(ends[1], &figures, sizeof figures) == static_cast<ssize_t>(sizeof figures) ? 0 : 1);
  }
  close(ends[1]);
  auto is_measured = read(ends[0], &figures, sizeof figures) == static_cast<ssize_t>(sizeof figures);
  close(ends[0]);
  int status = 0;
  return waitpid(child, &status, 0) == child && is_measured;
}

inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

inline void tell(size_t count, const Way &way, const std::vector<Figures> &all) {
  std::printf("%6zu  %-12s", count, way.name);
  if (all.empty())
    std::printf("  failed, see above");
  for (auto &column : columns) {
    std::vector<double> values;
    for (auto &figures : all)
      values.push_back(figures.*column.figure);
    if (!values.empty())
      std::printf("  %s %.4g %s (%.4g-%.4g)", column.name, median(values), column.unit,
                  *std::min_element(values.begin(), values.end()), *std::max_element(values.begin(), values.end()));
  }
  std::printf("\n");
}

// Measures all ways, by turns, as the arguments say. `suite` begins the ids.
inline int run(const char *suite, const std::vector<Way> &ways, int argc, char **argv) {
  auto is_for_records = false;
  std::vector<size_t> counts;
  for (int i = 1; i < argc; ++i) {
    char *end = nullptr;
    auto count = std::strtoull(argv[i], &end, 10);
    if (std::strcmp(argv[i], "--samples") == 0)
      is_for_records = true;
    else if (*end == 0 && count != 0 && count < 10'000'000)
      counts.push_back(count);
    else {
      std::fprintf(stderr, "`%s` is neither `--samples` nor a number of functions below 10000000\n", argv[i]);
      return 2;
    }
  }
  if (counts.empty())
    counts = {1000, 20'000};
  for (auto count : counts) {
    std::vector<std::vector<Figures>> all(ways.size());
    std::vector<bool> works(ways.size(), true);
    for (int round = 0; round < rounds; ++round)
      for (size_t i = 0; i < ways.size(); ++i) {
        Figures figures;
        if (works[i] && (works[i] = run_apart(ways[i], count, figures)))
          all[i].push_back(figures);
      }
    for (size_t i = 0; i < ways.size(); ++i)
      if (!is_for_records)
        tell(count, ways[i], all[i]);
    if (is_for_records)
      for (auto &column : columns)
        for (size_t i = 0; i < ways.size(); ++i)
          for (auto &figures : all[i])
            std::printf("%s.%s.%zu.%s %s %g\n", suite, column.name, count, ways[i].name, column.unit,
                        figures.*column.figure);
    std::fflush(stdout);
  }
  return 0;
}

} // namespace measure

#endif // MEASURE_H
