/* A library with 8 MiB of text, which contain three whole huge pages wherever it is loaded: at each 4 KiB a function
   that adds its number. */
#ifdef __x86_64__
#define ADD "lea palimpsest_number(%rdi), %eax\nret\n"
#else
#define ADD "add w0, w0, #palimpsest_number\nret\n"
#endif

__asm__(".text\n.p2align 12\n.globl functions\n.type functions,%function\nfunctions:\n"
        ".set palimpsest_number, 0\n.rept 2100\n" ADD
        ".p2align 12, 0\n.set palimpsest_number, palimpsest_number + 1\n.endr\n.size functions, . - functions\n");

extern char functions[];

int call(int number, int x)
{
    return ((int (*)(int))(functions + number * 4096))(x);
}
