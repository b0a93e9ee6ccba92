/* A program under AddressSanitizer, whose shadow memory is frozen with its heap, and still knows bad accesses. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BLOCKS = 64, BYTES = 1 << 20 };
static char *blocks[BLOCKS];
static char *freed;

static void in_child(const char *name, void (*act)(void)) {
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        act();
        _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    printf("%s: %d\n", name, WEXITSTATUS(status));
}

static void check(void) {
    for (int i = 0; i < BLOCKS; i++)
        for (int at = 0; at < BYTES; at += 4096)
            if (blocks[i][at] != i) _exit(1);
}

static void churn(void) {
    for (int i = 0; i < BLOCKS; i++) {
        free(blocks[i]);
        blocks[i] = malloc(BYTES + i * 16);
        memset(blocks[i], i, BYTES + i * 16);
    }
    check();
}

static void overflow(void) { ((volatile char *)blocks[7])[BYTES] = 1; }
static void use_after_free(void) { ((volatile char *)freed)[3] = 1; }
static void overflow_of_new(void) {
    volatile char *block = malloc(33);
    block[33] = 1;
}

int main(void) {
    for (int i = 0; i < BLOCKS; i++) blocks[i] = memset(malloc(BYTES), i, BYTES);
    freed = malloc(100);
    free(freed);
    in_child("all is there", check);
    in_child("overflow of an old block", overflow);
    in_child("use after free", use_after_free);
    in_child("overflow of a new block", overflow_of_new);
    churn();
    in_child("all is there after the parent's changes", check);
    in_child("and can be changed", churn);
    return 0;
}
