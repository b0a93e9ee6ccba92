/* Numbers that the compiler keeps in several places: compared in one, used in another. */
#include "corpus.h"

MAP(array, ARRAY, __u32, __u8[64], 1);

/* Compared in one register, used in another. */
SEC("hook/copied") __u64 copied(struct ctx *ctx)
{
	__u64 number = ctx->n, copy = number;
	unknown(copy);
	asm volatile("%0 = %1" : "=r"(copy) : "r"(number));
	if (copy >= ROOM)
		return 1000;
	return ctx->data[number];
}

/* The other way round, with something added. */
SEC("hook/added") __u64 added(struct ctx *ctx)
{
	__u64 number = ctx->n, sum;
	asm volatile("%0 = %1\n%0 += 8" : "=r"(sum) : "r"(number));
	if (sum >= ROOM)
		return 1000;
	if (number >= ROOM)
		return 2000;
	return ctx->data[number] + ctx->data[sum];
}

/* Kept on the stack while registers are needed for something else. */
SEC("hook/kept") __u64 kept(struct ctx *ctx)
{
	__u64 index = ctx->n, kept;
	asm volatile("*(u64 *)(r10 - 256) = %1\n%0 = *(u64 *)(r10 - 256)" : "=r"(kept) : "r"(index) : "memory");
	if (index > 63)
		return 1000;
	__u32 key = 0;
	__u8 *bytes = map_lookup(&array, &key);
	if (!bytes)
		return 2000;
	bytes[kept]++;
	return bytes[index];
}

/* Passed to a function that compares it, and used behind that. */
static __noinline int is_good(__u64 index)
{
	return index < 48;
}

SEC("hook/asked") __u64 asked(struct ctx *ctx)
{
	__u64 index = ctx->n;
	unknown(index);
	if (!is_good(index))
		return 1000;
	return ctx->data[index];
}

/* More numbers than registers. */
SEC("hook/many") __u64 many(struct ctx *ctx)
{
	__u32 a = ctx->data[0], b = ctx->data[1], c = ctx->data[2], d = ctx->data[3];
	int e = ctx->i, f = ctx->n;
	__u32 key = 0;
	if (a > 63 || b > 63)
		return 1;
	if (e < 0 || f < 0)
		return 2;
	__u8 *bytes = map_lookup(&array, &key);
	if (!bytes || c > 63 || d > 63 || e > 63)
		return 3;
	__u32 sum = bytes[a] + bytes[b] * 2 + bytes[c] * 3 + bytes[d] * 5 + bytes[e] * 7;
	if (f > 63)
		return sum;
	bytes[f] = sum;
	return sum + bytes[(a + b + c) & 63];
}

/* The length is compared, and one less than it is the last place. */
SEC("hook/last") __u64 last(struct ctx *ctx)
{
	__u32 len = ctx->n, last = len - 1;
	if (last > ROOM - 1)
		return 1000;
	return ctx->data[last] << 8 | ctx->data[ROOM - len];
}
