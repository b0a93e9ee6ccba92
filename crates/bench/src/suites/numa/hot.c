/* 20 000 functions whose pages are executed again and again: a program limited by its text. In 33 MB, and all of it is
   executed; or with COLD in 83 MB, of which only the first instruction of each function is, as in a program most of
   whose code handles what seldom happens. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define FUNCTIONS 20000

#ifdef __x86_64__
#define JUMP "jmp 1f\n"
#else
#define JUMP "b 1f\n"
#endif
/* On to the next piece of the function, as compiled code goes from block to block. */
#define PIECE JUMP ".zero 396\n1:\n"

#ifdef COLD
#define BODY "ret\n.zero 4159\n"
#else
#define BODY PIECE PIECE PIECE PIECE "ret\n"
#endif

__asm__(".pushsection .text.hot, \"ax\", %progbits\n.balign 4096\nhot:\n.rept 20000\n" BODY
        ".balign 64\n.endr\nhot_end:\n.popsection\n");

extern char hot[], hot_end[];

static void round_of_all(void) {
    size_t length = (size_t)(hot_end - hot) / FUNCTIONS;
    /* 7919 is prime: every function once, none near the last. */
    for (unsigned long at = 0, i = 0; i < FUNCTIONS; i++, at = (at + 7919) % FUNCTIONS)
        ((void (*)(void))(hot + at * length))();
}

int main(void) {
    char line[64];
    puts("up");
    fflush(stdout);
    /* Answers a number with the nanoseconds of that many rounds. */
    while (fgets(line, sizeof line, stdin)) {
        struct timespec start, end;
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &start);
        for (int rounds = atoi(line); rounds > 0; rounds--)
            round_of_all();
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &end);
        printf("%.0f\n", (end.tv_sec - start.tv_sec) * 1e9 + (end.tv_nsec - start.tv_nsec));
        fflush(stdout);
    }
    return 0;
}
