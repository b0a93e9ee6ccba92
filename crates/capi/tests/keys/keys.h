/* Branches in functions that compilers copy: inline ones, and in C++ those of which the linker keeps one copy. */
#include <palimpsest.h>

PALIMPSEST_KEY_DECLARE(first, 0);
PALIMPSEST_KEY_DECLARE(second, 1);

/* The state of both keys as a number. */
static inline int states(void) {
    return (palimpsest_branch_unlikely(first) ? 1 : 0) + (palimpsest_branch_likely(second) ? 2 : 0);
}

/* Unrolled, if the compiler likes: each copy of the branch is a site of its own. */
static inline int in_a_loop(void) {
    int found = 0;
    for (int step = 0; step < 4; step++) {
        found += palimpsest_branch_likely(first) ? 1 : 0;
        if (palimpsest_branch_unlikely(second)) {
            found += 2;
        }
    }
    return found / 4;
}

#ifdef __cplusplus
inline int one_copy() { return states() + 10 * (palimpsest_branch_unlikely(second) ? 2 : 0); }

template <int Factor>
int instantiated() {
    return Factor * ((palimpsest_branch_unlikely(first) ? 1 : 0) + (palimpsest_branch_unlikely(second) ? 2 : 0));
}

struct in_a_class {
    int own = 0;
    int method() { return own = own + (palimpsest_branch_likely(first) ? 1 : 0) + states() / 2 * 2; }
    virtual ~in_a_class() = default;
    virtual int overridden() { return palimpsest_branch_unlikely(first) ? 1 : 0; }
};

inline auto in_a_lambda = [](int factor) { return factor * (palimpsest_branch_likely(second) ? 2 : 0); };
#endif

/* What all of them say; -1 if they do not agree. Each source file has its own. */
static inline int agreed(void) {
    int found = states();
    int is_right = in_a_loop() == found;
#ifdef __cplusplus
    is_right = is_right && one_copy() == found + 10 * (found & 2) && instantiated<3>() == 3 * found;
    is_right = is_right && in_a_class().method() == found && in_a_class().overridden() == (found & 1);
    is_right = is_right && in_a_lambda(5) == 5 * (found & 2);
#endif
    return is_right ? found : -1;
}

#ifdef __cplusplus
extern "C" {
#endif
int in_this_file(void);
int in_the_other(void);
__attribute__((visibility("default"))) int in_the_library(void);
__attribute__((visibility("default"))) enum palimpsest_result set_in_the_library(int is_on);
#ifdef __cplusplus
}
#endif
