/* Indices of every width and sign, compared, clamped, counted up and down. */
#include "corpus.h"

MAP(arrays, ARRAY, __u32, __u64[16], 1);

SEC("hook/plain") __u64 plain(struct ctx *ctx)
{
	__u32 index = ctx->n;
	return index < ROOM ? ctx->data[index] : 1000;
}

SEC("hook/signed") __u64 with_sign(struct ctx *ctx)
{
	int index = ctx->i;
	if (index < 0 || index >= 56)
		return 1000;
	return ctx->data[index];
}

SEC("hook/turned") __u64 turned(struct ctx *ctx)
{
	int index = ctx->i;
	if (index > 55)
		return 1000;
	if (index < 0)
		return 2000;
	return ctx->data[index];
}

SEC("hook/shifted") __u64 shifted(struct ctx *ctx)
{
	int index = ctx->i;
	if (index < -20 || index > 20)
		return 1000;
	return ctx->data[index + 20] + ctx->data[20 - index];
}

SEC("hook/less_one") __u64 less_one(struct ctx *ctx)
{
	__u32 len = ctx->n;
	if (len == 0 || len > 64)
		return 1000;
	return ctx->data[len - 1] + ctx->data[64 - len];
}

SEC("hook/narrow") __u64 narrow(struct ctx *ctx)
{
	__u8 byte = ctx->n;
	__s8 small = ctx->i;
	__u16 half = ctx->m;
	__s16 other = ctx->i;
	__u64 sum = 0;
	if (byte < 101)
		sum += ctx->data[byte];
	int wide = small;
	unknown(wide);
	if (wide >= 0 && wide < 100)
		sum += ctx->data[wide] << 8;
	if (half <= 98)
		sum += (__u64)ctx->data[half] << 16;
	if (other >= -8 && other < 8)
		sum += (__u64)ctx->data[other + 8] << 24;
	return sum;
}

SEC("hook/clamped") __u64 clamped(struct ctx *ctx)
{
	int index = ctx->i;
	index = index < 3 ? 3 : index > 90 ? 90 : index;
	__s64 wide = (__s64)ctx->i * 4;
	unknown(wide);
	if (wide < 0)
		wide = -wide;
	wide = wide > 80 ? 80 : wide;
	return ctx->data[index] << 8 | ctx->data[wide];
}

SEC("hook/divided") __u64 divided(struct ctx *ctx)
{
	int index = ctx->i;
	__u64 sum = ctx->data[ctx->n / 0x4000000] + ctx->data[scaled(ctx->m, 50)];
	if (index >= 0)
		sum += ctx->data[index & 15] << 8;
	index = remainder(index, 16);
	if (index < 0)
		index += 16;
	return sum + (ctx->data[index] << 16);
}

SEC("hook/upwards") __u64 upwards(struct ctx *ctx)
{
	__u64 sum = 0;
	__u32 count = ctx->n;
	if (count > ROOM)
		count = ROOM;
	rolled for (__u32 at = 0; at < count; at++)
		sum += ctx->data[at];
	rolled for (int at = 0; at < 40; at += 3) {
		if (at >= ctx->i)
			break;
		sum = sum * 7 + ctx->data[at];
	}
	return sum;
}

SEC("hook/downwards") __u64 downwards(struct ctx *ctx)
{
	__u64 sum = 0;
	int count = ctx->n & 31;
	rolled for (int at = count - 1; at >= 0; at--)
		sum = sum * 3 + ctx->data[at];
	rolled for (__u32 at = 20; at-- > 0;)
		sum = sum * 5 + ctx->data[at];
	return sum;
}

SEC("hook/both") __u64 both(struct ctx *ctx)
{
	__u32 offset = ctx->n, len = ctx->m;
	if (offset > 40 || len > 16 || offset + len > 50)
		return 0;
	__u64 sum = 0;
	rolled for (__u32 at = 0; at < 16; at++) {
		if (at >= len)
			break;
		sum += ctx->data[offset + at];
	}
	return sum;
}

SEC("hook/across_a_call") __u64 across_a_call(struct ctx *ctx)
{
	__u32 index = ctx->n, key = 0;
	int other = ctx->i;
	if (index > 15 || other < 0)
		return 1000;
	__u64 *values = map_lookup(&arrays, &key);
	if (!values || other > 15)
		return 2000;
	values[index] += ctx->m;
	values[other]++;
	return values[(index + 1) & 15] + values[index];
}

SEC("hook/counted") __u64 counted(struct ctx *ctx)
{
	__u32 bits = ctx->n, count = 0, at = 0;
	rolled while (bits && at < 32) {
		if (bits & 1)
			count += ctx->data[at];
		bits >>= 1;
		at++;
	}
	return count << 8 | at;
}

SEC("hook/searched") __u64 searched(struct ctx *ctx)
{
	int low = 0, high = 63;
	rolled for (int step = 0; step < 7; step++) {
		if (low > high)
			break;
		int middle = (low + high) >> 1;
		if (middle < 0 || middle > 63)
			return 1000;
		if (ctx->data[middle] < ctx->m)
			low = middle + 1;
		else
			high = middle - 1;
	}
	return low;
}
