// How many mappings this process has.

#ifndef MAPPINGS_H
#define MAPPINGS_H

#include <cstddef>
#include <fstream>
#include <string>

inline std::size_t mappings() {
  std::ifstream maps("/proc/self/maps");
  std::size_t count = 0;
  for (std::string line; std::getline(maps, line);)
    ++count;
  return count;
}

#endif // MAPPINGS_H
