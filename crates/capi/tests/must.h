/* What the C programs here promise: a false condition ends `main`, and says where, with what the library last said. */
#include <errno.h>
#include <palimpsest.h>
#include <stdio.h>
#include <string.h>

#define MUST(condition)                                                                        \
    do {                                                                                       \
        if (!(condition)) {                                                                    \
            printf("line %d: %s is false, errno %d: %s\n", __LINE__, #condition, errno,        \
                   palimpsest_error_message());                                                \
            return 1;                                                                          \
        }                                                                                      \
    } while (0)
#define IS(expected, call) MUST((call) == PALIMPSEST_##expected)
#define SAYS(text) MUST(strstr(palimpsest_error_message(), text) != NULL)
