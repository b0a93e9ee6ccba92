/* A program whose lines a debugger shows while it calls the host. */
#include "bpf.h"

static void (*stop)(__u64 number) = (void *)1000;

static __attribute__((noinline)) int deeper(__u64 number)
{
	number += 1;
	stop(number); /* the line of the innermost frame */
	return number & 0xff;
}

SEC("test")
int outermost(__u8 *packet)
{
	__u64 number = packet[1];

	number = number * 3 + packet[2];
	return deeper(number) + 1; /* the line of the frame around it */
}
