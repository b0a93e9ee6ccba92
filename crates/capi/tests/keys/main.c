/* The keys, and a source file with branches on them. */
#include "../must.h"
#include "keys.h"

PALIMPSEST_KEY(first, "matrix.first", 0);
PALIMPSEST_KEY(second, "matrix.second", 1);

int in_this_file(void) { return agreed(); }

int main(void) {
    MUST(in_this_file() == 2 && in_the_other() == 2 && in_the_library() == 1);
    for (int round = 0; round < 3; round++) {
        for (int states = 0; states < 4; states++) {
            IS(OK, palimpsest_key_set(&first, states & 1));
            IS(OK, palimpsest_key_set(&second, states & 2));
            IS(OK, set_in_the_library(states & 1));
            MUST(in_this_file() == states);
            MUST(in_the_other() == states);
            MUST(in_the_library() == (states & 1));
        }
    }
    size_t count = 0;
    IS(OK, palimpsest_keys_set("matrix.*", 0, &count));
    MUST(count == 3 && in_this_file() == 0 && in_the_other() == 0 && in_the_library() == 0);
    IS(OK, palimpsest_keys_set("matrix.*", 1, &count));
    MUST(count == 3 && in_this_file() == 3 && in_the_other() == 3 && in_the_library() == 1);
    return 0;
}
