/* Buffers on the stack: large ones, and places in them that are known when the program runs. */
#include "corpus.h"

MAP(seen, HASH, __u32, __u64, 64);
MAP(wide, HASH, __u8[24], __u64, 64);

SEC("hook/one_of_eight") __u64 one_of_eight(struct ctx *ctx)
{
	__u64 table[8];
	for (int at = 0; at < 8; at++)
		table[at] = ctx->data[at] * at;
	return table[ctx->n & 7];
}

SEC("hook/large") __u64 large(struct ctx *ctx)
{
	__u32 table[96] = {};
	rolled for (int at = 0; at < 64; at++)
		table[scaled(ctx->data[at], 96)] += at;
	__u32 index = ctx->n;
	return index < 96 ? table[index] : -1;
}

SEC("hook/sorted") __u64 sorted(struct ctx *ctx)
{
	__u8 bytes[12];
	__builtin_memcpy(bytes, ctx->data, sizeof(bytes));
	rolled for (int end = 11; end > 0; end--) {
		rolled for (int at = 0; at < end; at++) {
			__u8 here = bytes[at], next = bytes[at + 1];
			if (here > next) {
				bytes[at] = next;
				bytes[at + 1] = here;
			}
		}
	}
	__u64 sum = 0;
	for (int at = 0; at < 12; at++)
		sum = sum * 9 + bytes[at];
	return sum + bytes[scaled(ctx->n, 12)];
}

/* A stack of numbers, for a calculator. */
SEC("hook/calculator") __u64 calculator(struct ctx *ctx)
{
	__s64 stack[8] = {};
	__u32 top = 0;
	rolled for (int at = 0; at < 16; at++) {
		__u8 letter = ctx->data[at];
		if (letter >= '0' && letter <= '9') {
			if (top >= 8)
				return -1;
			stack[top++] = letter - '0';
			continue;
		}
		if (letter != '+' && letter != '*')
			break;
		if (top < 2 || top > 8)
			return -2;
		__s64 one = stack[top - 1], other = stack[top - 2];
		stack[top - 2] = letter == '+' ? one + other : one * other;
		top--;
	}
	return stack[(top - 1) & 7];
}

/* A helper gets a place in an array. */
SEC("hook/key") __u64 key(struct ctx *ctx)
{
	__u32 keys[8];
	for (int at = 0; at < 8; at++)
		keys[at] = ctx->data[at];
	__u32 which = ctx->n;
	if (which >= 8)
		return -1;
	__u64 one = 1, *found = map_lookup(&seen, &keys[which]);
	if (found)
		return ++*found;
	map_update(&seen, &keys[which], &one, 0);
	return 0;
}

/* Bytes of a packet as they come, from a place that it says. */
SEC("hook/window") __u64 window(struct ctx *ctx)
{
	__u8 bytes[64];
	__builtin_memcpy(bytes, ctx->data, 64);
	__u32 from = scaled(ctx->n, 40);
	__u64 one = 1, *found = map_lookup(&wide, bytes + from);
	if (found)
		return ++*found;
	map_update(&wide, bytes + from, &one, 0);
	return 0;
}

/* A ring of the latest. */
struct latest {
	__u16 values[8];
	__u8 next;
};

static __noinline void note(struct latest *latest, __u16 value)
{
	latest->values[latest->next & 7] = value;
	latest->next++;
}

SEC("hook/latest") __u64 latest(struct ctx *ctx)
{
	struct latest latest = {};
	rolled for (int at = 0; at < 20; at++)
		if (ctx->data[at] & 1)
			note(&latest, ctx->data[at]);
	__u64 sum = latest.next;
	for (int at = 0; at < 8; at++)
		sum = sum << 7 ^ latest.values[at];
	return sum;
}

SEC("hook/matrix") __u64 matrix(struct ctx *ctx)
{
	__u32 one[4][4], product[4][4] = {};
	for (int at = 0; at < 16; at++)
		one[at / 4][at % 4] = ctx->data[at];
	rolled for (int row = 0; row < 4; row++)
		rolled for (int column = 0; column < 4; column++)
			for (int at = 0; at < 4; at++)
				product[row][column] += one[row][at] * one[at][column];
	return product[ctx->n & 3][ctx->m & 3];
}
