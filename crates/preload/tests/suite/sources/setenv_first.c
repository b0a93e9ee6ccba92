/* Preloaded behind the object, so that its constructor runs first: the C library makes a new environment, with a new
 * string that names the object alone. */
#include <stdlib.h>
#include <string.h>

__attribute__((constructor)) static void first(void) {
    const char *both = getenv("LD_PRELOAD");
    char *object = both ? strndup(both, strcspn(both, ":")) : NULL;
    if (object) setenv("LD_PRELOAD", object, 1);
    setenv("SET_FIRST", "1", 1);
}
