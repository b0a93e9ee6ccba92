/* For gcc, which calls helpers by an attribute, and whose assembler counts addends from sections. */
#include "bpf.h"

static void *lookup(void *map, const void *key) __attribute__((kernel_helper(1)));
static long loop_(__u32 count, void *function, void *ctx, __u64 flags) __attribute__((kernel_helper(181)));

struct {
	__uint(type, ARRAY);
	__uint(max_entries, 4);
	__type(key, __u32);
	__type(value, __u64);
} one SEC(".maps"), two SEC(".maps"), three SEC(".maps");

__u64 first = 7, second = 9;
static __u64 hidden = 5;
const volatile __u64 limit = 1000;
__u32 table[4] SEC(".data.table") = { 1, 20, 300, 4000 };
__u64 runs;

static __noinline __u64 weigh(__u64 number)
{
	return number * 3 + hidden;
}

static long add(__u32 index, __u64 *sum)
{
	*sum += table[index & 3];
	return 0;
}

SEC("hook/numbers") __u64 numbers(__u8 *context)
{
	hidden += 1;
	second += context[4];
	runs += 1;
	return first * 100 + second + (runs == 1) + limit + table[2];
}

SEC("hook/maps") __u64 maps(void *context)
{
	__u32 key = 1;
	__u64 *value = lookup(&one, &key), *other = lookup(&two, &key), *last = lookup(&three, &key);
	if (!value || !other || !last)
		return 0;
	*value += 1;
	*other += 20;
	*last += 300;
	return *value + *other + *last;
}

SEC("hook/calls") __u64 calls(void *context)
{
	__u64 sum = 0;
	loop_(4, add, &sum, 0);
	return weigh(sum);
}
