/* Functions that helpers call: what they get is compared in 32 bits, and they change what their caller has. */
#include "corpus.h"

struct sum {
	__u64 sum;
	__u32 count;
	struct ctx *ctx;
};

static long add(__u32 index, struct sum *sum)
{
	if (index >= ROOM)
		return 1;
	sum->sum += sum->ctx->data[index];
	sum->count++;
	return 0;
}

SEC("hook/bytes") __u64 bytes(struct ctx *ctx)
{
	struct sum sum = { .ctx = ctx };
	loop(ctx->n, add, &sum, 0);
	return sum.sum << 16 | sum.count;
}

static long add_signed(int index, struct sum *sum)
{
	if (index < 2 || index > 40)
		return index > 40;
	sum->sum = sum->sum * 3 + sum->ctx->data[index - 2];
	return 0;
}

SEC("hook/signed") __u64 with_sign(struct ctx *ctx)
{
	struct sum sum = { .ctx = ctx };
	loop(60, add_signed, &sum, 0);
	return sum.sum;
}

/* It fills a buffer of its caller. */
struct filled {
	__u8 bytes[32];
	__u32 len;
	struct ctx *ctx;
};

static long fill(__u32 index, struct filled *filled)
{
	__u32 place = filled->len;
	if (place >= sizeof(filled->bytes) || index >= ROOM)
		return 1;
	__u8 byte = filled->ctx->data[index];
	if (byte & 1) {
		filled->bytes[place] = byte;
		filled->len = place + 1;
	}
	return 0;
}

SEC("hook/filter") __u64 filter(struct ctx *ctx)
{
	struct filled filled = { .ctx = ctx };
	loop(ctx->len, fill, &filled, 0);
	__u64 hash = filled.len;
	rolled for (int at = 0; at < 32; at++)
		hash = hash * 31 + filled.bytes[at];
	return hash;
}

MAP(numbers, ARRAY, __u32, __u64, 16);
MAP(names, HASH, __u32, __u64, 16);

struct most {
	__u64 value;
	__u32 key;
	__s32 left;
};

static long compare(void *map, const __u32 *key, __u64 *value, struct most *most)
{
	if (*value > most->value) {
		most->value = *value;
		most->key = *key;
	}
	return --most->left <= 0;
}

static long set(__u32 index, struct ctx *ctx)
{
	__u32 key = index & 15;
	__u64 value = ctx->data[key] * (index + 1);
	map_update(&numbers, &key, &value, 0);
	map_update(&names, &key, &value, 0);
	return 0;
}

SEC("hook/most") __u64 most(struct ctx *ctx)
{
	struct most most = { .left = ctx->i };
	loop(ctx->n & 31, set, ctx, 0);
	for_each(&numbers, compare, &most, 0);
	return most.value << 8 | most.key;
}
