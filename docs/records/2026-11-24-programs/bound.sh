#!/bin/sh
# bound.sh OBJECT: makes empty.so, names.so, lookups.so and constants.so here. names.so defines the functions that
# OBJECT defines, by jumps through pointers that nobody has set. lookups.so and constants.so define those that OBJECT
# looks up, which it does at its start, so that they can be used. constants.so has as many pages of addresses as OBJECT.
set -e
LOOKED_UP="fork madvise mremap mmap mlock mlock2 mlockall mprotect pkey_mprotect prctl posix_spawn posix_spawnp popen
    system execve epoll_wait epoll_pwait poll ppoll select pselect nanosleep clock_nanosleep execveat"
ALL=$(nm -D --defined-only "$1" | awk '$2 == "T" || $2 == "W" { print $3 }')

each() {
    number=0
    for name in $2; do
        case $1 in
        define) echo "__asm__(\".globl $name; .type $name, @function; $name: jmp *next+$((8 * number))(%rip)\");" ;;
        look_up) echo "    next[$number] = dlsym(RTLD_NEXT, \"$name\");" ;;
        esac
        number=$((number + 1))
    done
}

for kind in empty names lookups constants; do
    {
        echo '#define _GNU_SOURCE'
        echo '#include <dlfcn.h>'
        echo 'static void *volatile next[64];'
        case $kind in
        names) each define "$ALL" ;;
        lookups | constants)
            each define "$LOOKED_UP"
            echo 'static void start(void) {'
            each look_up "$LOOKED_UP"
            echo '}'
            echo '__attribute__((section(".init_array"), used)) static void (*const first)(void) = start;'
            ;;
        esac
        if [ $kind = constants ]; then
            # Every other word of eight pages.
            echo 'static const struct { void *address; long number; } constants[8 * 256] __attribute__((used)) = {'
            echo '    [0 ... 8 * 256 - 1] = {(void *)&next, 1}};'
        fi
    } >$kind.c
    cc -O2 -w -shared -fPIC -nostartfiles $kind.c -o $kind.so
done
