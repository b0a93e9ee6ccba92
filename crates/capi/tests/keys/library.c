/* A shared library with a key of its own. */
#include "keys.h"

PALIMPSEST_KEY(of_the_library, "matrix.library", 1);

#ifdef __cplusplus
template <typename Number>
Number branches() {
    return palimpsest_branch_unlikely(of_the_library) ? 1 : 0;
}
#define BRANCHES branches<int>
#else
static inline int branches(void) { return palimpsest_branch_unlikely(of_the_library) ? 1 : 0; }
#define BRANCHES branches
#endif

int in_the_library(void) {
    int likely = palimpsest_branch_likely(of_the_library) ? 1 : 0;
    return BRANCHES() == likely ? likely : -1;
}

enum palimpsest_result set_in_the_library(int is_on) { return palimpsest_key_set(&of_the_library, is_on); }
