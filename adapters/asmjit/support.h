// What the tests and the measurement share.

#ifndef SUPPORT_H
#define SUPPORT_H

#include <cstdio>
#include <cstdlib>

#include <asmjit/x86.h>

#include "../mappings.h"
#include "palimpsest/asmjit.h"

#define MUST(condition)                                                                                                \
  do {                                                                                                                 \
    if (!(condition)) {                                                                                                \
      std::fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, #condition, palimpsest_error_message());            \
      std::abort();                                                                                                    \
    }                                                                                                                  \
  } while (0)

inline palimpsest_packs open_packs(palimpsest_packs_options options = {}) {
  options.size = sizeof options;
  palimpsest_packs packs;
  MUST(palimpsest_packs_open(&options, &packs) == PALIMPSEST_OK);
  return packs;
}

#endif // SUPPORT_H
