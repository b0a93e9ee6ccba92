/* Maps in maps, and programs in a map, from the beginning. */
#include "bpf.h"

#define __array(name, val) typeof(val) *name[]

enum { ARRAY_OF_MAPS = 12 };

struct numbers {
	__uint(type, ARRAY);
	__uint(max_entries, 4);
	__type(key, __u32);
	__type(value, __u64);
} first SEC(".maps"), second SEC(".maps");

struct {
	__uint(type, ARRAY_OF_MAPS);
	__uint(max_entries, 4);
	__type(key, __u32);
	__array(values, struct numbers);
} outer SEC(".maps") = {
	.values = { [0] = &first, [2] = &second },
};

__u64 there(void *context);

struct {
	__uint(type, PROG_ARRAY);
	__uint(max_entries, 2);
	__uint(key_size, 4);
	__array(values, __u64(void *));
} jumps SEC(".maps") = {
	.values = { [1] = &there },
};

SEC("hook/there") __u64 there(void *context)
{
	return 77;
}

SEC("hook/jump") __u64 jump(void *context)
{
	tail_call(context, &jumps, 1);
	return 0;
}

/* Counts in the place that the second byte says, of the map that the first byte says. */
SEC("hook/count_in") __u64 count_in(const unsigned char *context)
{
	__u32 which = context[0], place = context[1];
	void *numbers = map_lookup(&outer, &which);
	if (!numbers)
		return 1000;
	__u64 *number = map_lookup(numbers, &place);
	if (!number)
		return 2000;
	*number += 1;
	return *number;
}
