/* Functions that return addresses, and addresses that are chosen. */
#include "corpus.h"

struct value {
	__u64 count;
	__u8 name[24];
};

MAP(values, HASH, __u32, struct value, 64);
MAP(spare, ARRAY, __u32, struct value, 4);

static __noinline struct value *get(__u32 key)
{
	struct value empty = {}, *found = map_lookup(&values, &key);
	if (found)
		return found;
	map_update(&values, &key, &empty, 1);
	return map_lookup(&values, &key);
}

SEC("hook/one") __u64 one(struct ctx *ctx)
{
	struct value *value = get(ctx->n);
	if (!value)
		return -1;
	value->name[scaled(ctx->m, sizeof(value->name))]++;
	return ++value->count;
}

/* Two of them at once, compared afterwards. */
static __noinline struct value *find(__u32 key)
{
	return map_lookup(&values, &key);
}

SEC("hook/two") __u64 two(struct ctx *ctx)
{
	struct value *first = find(ctx->n), *second = find(ctx->m);
	if (!first || !second)
		return !first + 2 * !second;
	first->count += 10;
	second->count += 100;
	return first->count + second->count;
}

/* One or the other; the caller sees that there is one. */
static __noinline struct value *either(__u32 key)
{
	struct value *found = find(key);
	if (found)
		return found;
	__u32 slot = key & 3;
	return map_lookup(&spare, &slot);
}

SEC("hook/either") __u64 chosen(struct ctx *ctx)
{
	struct value *value = either(ctx->n);
	if (value)
		return ++value->count;
	return -1;
}

/* A place in what the caller has. */
static __noinline __u8 *behind(struct ctx *ctx, __u32 offset)
{
	if (offset > 64)
		return 0;
	return &ctx->data[offset];
}

SEC("hook/place") __u64 place(struct ctx *ctx)
{
	__u8 *bytes = behind(ctx, ctx->n);
	if (!bytes)
		return -1;
	return bytes[0] | bytes[20] << 8 | bytes[ctx->m & 31] << 16;
}

static __noinline __u64 *larger(__u64 *one, __u64 *other)
{
	return *one > *other ? one : other;
}

SEC("hook/of_stack") __u64 of_stack(struct ctx *ctx)
{
	__u64 left = ctx->data[0], right = ctx->data[1];
	*larger(&left, &right) += 1000;
	return left << 32 | right;
}

/* What may be nothing is a number or an address. */
SEC("hook/maybe") __u64 maybe(struct ctx *ctx)
{
	__u64 sum = 5, *where = 0;
	if (ctx->n & 1) {
		where = &sum;
		/* Compilers would make `&` of the branch, which makes no address. */
		unknown(where);
	}
	if (where)
		*where += ctx->m;
	return sum;
}
