/* Functions that are alike but for their keys. The test links this with a linker that folds identical code. */
#include <palimpsest.h>

#include "../must.h"

PALIMPSEST_KEY(first, "folded.first", 0);
PALIMPSEST_KEY(second, "folded.second", 0);

#define ALIKE __attribute__((noinline))

ALIKE int on_first(void) { return palimpsest_branch_unlikely(first) ? 1 : 0; }
ALIKE int on_second(void) { return palimpsest_branch_unlikely(second) ? 1 : 0; }

ALIKE unsigned plain(unsigned number) { return number * 12345; }
ALIKE unsigned as_plain(unsigned number) { return number * 12345; }

int main(void) {
    unsigned (*volatile one)(unsigned) = plain;
    unsigned (*volatile other)(unsigned) = as_plain;
    /* Otherwise the linker folds nothing. */
    MUST(one == other);
    MUST(on_first() == 0 && on_second() == 0);
    IS(OK, palimpsest_key_set(&second, 1));
    MUST(on_first() == 0 && on_second() == 1);
    IS(OK, palimpsest_key_set(&first, 1));
    IS(OK, palimpsest_key_set(&second, 0));
    MUST(on_first() == 1 && on_second() == 0);
    return 0;
}
