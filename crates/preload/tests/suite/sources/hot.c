/* A function with whole huge pages of text around it, for debuggers and profilers. */
#include <stdio.h>

__asm__(".text\n.fill 0x400000,1,0\n");

__attribute__((noinline)) unsigned hot(unsigned rounds)
{
    unsigned sum = 0;
    for (unsigned round = 0; round < rounds; round++) {
        sum = sum * 31 + round;
        __asm__ volatile("" ::"r"(sum));
    }
    return sum;
}

__asm__(".text\n.fill 0x400000,1,0\n");

int main(int count, char **arguments)
{
    (void)arguments;
    printf("%u\n", hot(count > 1 ? 1000 : 300000000));
    return 0;
}
