/* Longest prefixes, tail calls, and values of each CPU. */
#include "corpus.h"

struct prefix4 {
	__u32 length;
	__u8 address[4];
};

struct prefix6 {
	__u32 length;
	__u32 address[4];
};

struct hop {
	__u32 port;
	__u8 name[12];
};

struct {
	__uint(type, LPM_TRIE);
	__uint(max_entries, 16);
	__uint(map_flags, 1);
	__type(key, struct prefix4);
	__type(value, struct hop);
} routes4 SEC(".maps");

struct {
	__uint(type, LPM_TRIE);
	__uint(max_entries, 16);
	__uint(map_flags, 1);
	__type(key, struct prefix6);
	__type(value, __u32);
} routes6 SEC(".maps");

SEC("hook/add4") __u64 add4(struct ctx *ctx)
{
	struct prefix4 key = { .length = ctx->n };
	struct hop hop = { .port = ctx->m };
	if (key.length > 32)
		return -1;
	__builtin_memcpy(key.address, ctx->data, 4);
	rolled for (__u32 bit = key.length; bit < 32; bit++)
		key.address[bit / 8] &= ~(0x80 >> bit % 8);
	rolled for (__u32 at = 0; at < sizeof(hop.name); at++)
		hop.name[at] = ctx->data[4 + at];
	return map_update(&routes4, &key, &hop, 0);
}

SEC("hook/find4") __u64 find4(struct ctx *ctx)
{
	struct prefix4 key = { .length = 32 };
	__builtin_memcpy(key.address, ctx->data, 4);
	struct hop *hop = map_lookup(&routes4, &key);
	return hop ? hop->port << 8 | hop->name[scaled(ctx->n, sizeof(hop->name))] : -1;
}

SEC("hook/route6") __u64 route6(struct ctx *ctx)
{
	struct prefix6 key = { .length = 128 };
	for (int at = 0; at < 4; at++)
		key.address[at] = ((__u32 *)ctx->data)[at];
	__u32 *port = map_lookup(&routes6, &key);
	if (port)
		return *port;
	int words = ctx->i;
	if (words < 0 || words > 3)
		return -1;
	key.length = (words + 1) * 32;
	rolled for (int at = words + 1; at < 4; at++) {
		key.address[at] = 0;
		unknown(at);
	}
	__u32 fresh = ctx->m;
	map_update(&routes6, &key, &fresh, 0);
	return key.length;
}

MAP(passed, PERCPU_ARRAY, __u32, __u64, 8);
MAP(passed_by, PERCPU_HASH, __u32, __u64, 8);

static inline void count(__u32 stage)
{
	__u64 one = 1, *found = map_lookup(&passed, &stage);
	if (found)
		*found += 1;
	found = map_lookup(&passed_by, &stage);
	if (found)
		*found += 1;
	else
		map_update(&passed_by, &stage, &one, 0);
}

SEC("hook/stage") __u64 stage(struct ctx *ctx)
{
	__u32 next = ctx->n;
	switch (ctx->data[0]) {
	case 4:
		next = 1;
		break;
	case 6:
		next = 2;
		break;
	case 17:
		if (ctx->len > 8)
			next = ctx->data[8] & 7;
		break;
	}
	count(next);
	return 100 + next;
}
