/* Small numbers on the stack whose addresses helpers get, and lines with fewer numbers than the helper takes. */
#include "bpf.h"

static long (*trace_printk)(const char *format, __u32 len, ...) = (void *)6;

struct {
	__uint(type, ARRAY);
	__uint(max_entries, 8);
	__type(key, __u32);
	__type(value, __u64);
} squares SEC(".maps");

/* The loop counts where the helper gets its key. */
SEC("hook/fill") __u64 fill(void *context)
{
	__u32 key;
#pragma clang loop unroll(disable)
	for (key = 0; key < 8; key++) {
		__u64 value = key * key;
		map_update(&squares, &key, &value, 0);
	}
	return key;
}

struct turn {
	__u32 key;
	__u16 found;
	__u8 step;
};

/* Beginning with one store of 8 bytes, of which each member is a part. */
SEC("hook/sum") __u64 sum_up(void *context)
{
	struct turn turn = {};
	__u64 sum = 0;
#pragma clang loop unroll(disable)
	do {
		__u64 *square = map_lookup(&squares, &turn);
		if (!square)
			return 0;
		sum += *square;
		turn.found++;
		turn.step ^= 3;
		turn.key += turn.step;
	} while (turn.key < 8);
	return sum << 16 | turn.found;
}

SEC("hook/say") long say(void *context)
{
	static const char none[] = "none";
	static const char one[] = "one: %d";
	__u32 key = 7;
	if (trace_printk(none, sizeof(none)) != 4)
		return -1;
	__u64 *square = map_lookup(&squares, &key);
	return square ? trace_printk(one, sizeof(one), *square) : -1;
}
