/* A second source file with branches on the same keys. */
#include "keys.h"

int in_the_other(void) { return agreed(); }
