// Prints what the object answers to who asks whether it serves the process.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

int main(void) {
    int (*serves)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "palimpsest_serves");
    puts(!serves ? "absent" : serves() ? "yes" : "no");
    return 0;
}
