/* Forks in constant time, however much memory the process has. */
#include <palimpsest.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

int main(void) {
    size_t len = 64 << 20;
    char *heap = malloc(len);
    if (heap == NULL) {
        return 1;
    }
    memset(heap, 1, len);
    // ANCHOR: fork
    /* What is smaller costs a fork little. */
    struct palimpsest_freeze_options options = {.size = sizeof options, .least = 16 << 20};
    struct palimpsest_freeze_report report = {.size = sizeof report};
    if (palimpsest_freeze(&options, &report) != PALIMPSEST_OK) {
        fprintf(stderr, "%s\n", palimpsest_error_message());
        return 1;
    }
    printf("froze %zu MiB: a fork took %zu us, and takes %zu\n", report.frozen >> 20,
           (size_t)report.fork_before_ns / 1000, (size_t)report.fork_after_ns / 1000);

    pid_t child;
    if (palimpsest_fork(&child) == PALIMPSEST_OK && child == 0) {
        _exit(heap[len / 2] == 1 ? 0 : 1);
    }
    // ANCHOR_END: fork
    int status;
    int is_right = waitpid(child, &status, 0) == child && status == 0;
    free(heap);
    return is_right ? 0 : 1;
}
