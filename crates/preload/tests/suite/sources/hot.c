/* A function with whole huge pages of text around it, for debuggers and profilers. With `abort` it ends there; with
   `where` it prints its address. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

__asm__(".text\n.fill 0x400000,1,0\n");

__attribute__((noinline)) unsigned hot(unsigned rounds)
{
    unsigned sum = 0;
    for (unsigned round = 0; round < rounds; round++) {
        sum = sum * 31 + round;
        __asm__ volatile("" ::"r"(sum));
    }
    if (rounds == 7)
        abort();
    return sum;
}

__asm__(".text\n.fill 0x400000,1,0\n");

int main(int count, char **arguments)
{
    if (count > 1 && strcmp(arguments[1], "where") == 0) {
        printf("%p\n", (void *)hot);
        return 0;
    }
    if (count > 1 && strcmp(arguments[1], "abort") == 0)
        return hot(7);
    printf("%u\n", hot(count > 1 ? 1000 : 300000000));
    return 0;
}
