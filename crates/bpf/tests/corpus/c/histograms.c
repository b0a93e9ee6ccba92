/* Numbers counted by their size, in maps, in variables and on the stack. */
#include "corpus.h"

MAP(sizes, ARRAY, __u32, __u64, 32);
MAP(by_cpu, PERCPU_ARRAY, __u32, __u64, 32);

struct slots {
	__u32 counts[26];
	__u64 sum;
};

MAP(by_name, HASH, __u32, struct slots, 16);

static __u64 levels[32];
static __u32 matrix[8][8];

static inline __u32 log2_of(__u32 value)
{
	__u32 result = (value > 0xffff) << 4, shift;
	value >>= result;
	shift = (value > 0xff) << 3;
	value >>= shift;
	result |= shift;
	shift = (value > 0xf) << 2;
	value >>= shift;
	result |= shift;
	shift = (value > 0x3) << 1;
	value >>= shift;
	result |= shift;
	return result | value >> 1;
}

SEC("hook/log") __u64 by_size(struct ctx *ctx)
{
	__u32 slot = log2_of(ctx->n);
	__u64 *count = map_lookup(&sizes, &slot);
	if (!count)
		return -1;
	__sync_fetch_and_add(count, 1);
	return slot << 16 | *count;
}

SEC("hook/clamped") __u64 clamped(struct ctx *ctx)
{
	struct slots empty = {};
	__u32 key = ctx->m & 7, slot = log2_of(ctx->n);
	if (slot >= 26)
		slot = 25;
	struct slots *found = map_lookup(&by_name, &key);
	if (!found) {
		map_update(&by_name, &key, &empty, 0);
		found = map_lookup(&by_name, &key);
		if (!found)
			return -1;
	}
	__sync_fetch_and_add(&found->counts[slot], 1);
	found->sum += ctx->n;
	return found->counts[slot];
}

SEC("hook/variables") __u64 variables(struct ctx *ctx)
{
	__u32 level = ctx->data[0];
	if (level > 31)
		level = 31;
	levels[level]++;
	matrix[ctx->n & 7][ctx->m % 8] += ctx->data[1];
	return levels[level] + matrix[ctx->n & 7][ctx->m & 7];
}

SEC("hook/on_stack") __u64 on_stack(struct ctx *ctx)
{
	__u8 seen[16] = {};
	rolled for (int at = 0; at < 48; at++)
		seen[ctx->data[at] & 15]++;
	__u64 squares = 0;
	for (int at = 0; at < 16; at++)
		squares += seen[at] * seen[at];
	return squares;
}

SEC("hook/per_cpu") __u64 per_cpu(struct ctx *ctx)
{
	__u32 slot = ctx->n;
	if (slot >= 32)
		return 1;
	__u64 *count = map_lookup(&by_cpu, &slot);
	if (count)
		(*count)++;
	return 0;
}

/* The smallest level at which at least as many were counted. */
SEC("hook/median") __u64 median(struct ctx *ctx)
{
	__u64 total = 0, half = 0;
	int level;
	rolled for (level = 0; level < 32; level++)
		total += levels[level];
	rolled for (level = 0; level < 32; level++) {
		half += levels[level];
		if (half * 2 >= total)
			break;
	}
	return level;
}
