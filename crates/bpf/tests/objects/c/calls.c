/* Functions that the host is to have. */
#include "bpf.h"

#define __ksym __attribute__((section(".ksyms")))

extern __u64 weigh(const void *bytes, __u32 len) __ksym;
extern void note(__u64 number) __ksym;
extern __u64 absent(void) __ksym;

static __noinline __u64 twice(const void *bytes)
{
	return weigh(bytes, 8) + weigh(bytes, 8);
}

SEC("hook/weighs") __u64 weighs(const void *context)
{
	__u64 weight = weigh(context, 16);
	note(weight);
	return weight + twice(context);
}

SEC("hook/lacks") __u64 lacks(void *context)
{
	return absent();
}
