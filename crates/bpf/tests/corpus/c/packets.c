/* Headers whose lengths others say: frames, tags, options, extensions, names. */
#include "corpus.h"

struct ethernet {
	__u8 to[6], from[6];
	__u16 type;
} __packed;

struct ipv4 {
	__u8 length : 4, version : 4;
	__u8 service;
	__u16 total, id, fragment;
	__u8 ttl, protocol;
	__u16 sum;
	__u32 from, to;
} __packed;

struct tcp {
	__u16 from, to;
	__u32 sequence, acknowledged;
	__u8 reserved : 4, offset : 4;
	__u8 flags;
	__u16 window, sum, urgent;
} __packed;

static inline __u16 swapped(__u16 number)
{
	return __builtin_bswap16(number);
}

/* The port of a connection: behind tags and options, as far as there are bytes. */
SEC("hook/port") __u64 port(struct ctx *ctx)
{
	__u32 at = sizeof(struct ethernet), len = ctx->len;
	if (len > ROOM || len < at)
		return 1;
	__u16 type = swapped(((struct ethernet *)ctx->data)->type);
	for (int tags = 0; tags < 2 && type == 0x8100; tags++) {
		if (at + 4 > len)
			return 2;
		type = ctx->data[at + 2] << 8 | ctx->data[at + 3];
		at += 4;
	}
	if (type != 0x0800 || at + sizeof(struct ipv4) > len)
		return 3;
	struct ipv4 *ip = (void *)&ctx->data[at];
	__u32 header = ip->length * 4;
	if (header < sizeof(*ip) || ip->protocol != 6)
		return 4;
	at += header;
	if (at + sizeof(struct tcp) > len)
		return 5;
	struct tcp *tcp = (void *)&ctx->data[at];
	return swapped(tcp->to) << 16 | swapped(tcp->from);
}

/* The greatest segment that a TCP option says. */
SEC("hook/segment") __u64 segment(struct ctx *ctx)
{
	__u32 at = ctx->n & 31, end = at + (ctx->data[12] >> 4) * 4;
	if (end > ROOM)
		return 1;
	rolled for (int count = 0; count < 10; count++) {
		if (at + 1 >= end)
			break;
		__u8 kind = ctx->data[at];
		if (kind == 0)
			break;
		if (kind == 1) {
			at++;
			continue;
		}
		__u8 len = ctx->data[at + 1];
		if (len < 2 || at + len > end)
			return 2;
		if (kind == 2 && len == 4)
			return ctx->data[at + 2] << 8 | ctx->data[at + 3];
		at += len;
	}
	return 3;
}

/* Extensions of IPv6, each of which says how long it is and what comes next. */
SEC("hook/extensions") __u64 extensions(struct ctx *ctx)
{
	__u32 at = 40;
	__u8 next = ctx->data[6];
#pragma unroll
	for (int count = 0; count < 4; count++) {
		if (next != 0 && next != 43 && next != 60)
			return next << 8 | at;
		unknown(at);
		if (at > ROOM - 2)
			return 1;
		next = ctx->data[at];
		at += (ctx->data[at + 1] + 1) * 8;
	}
	return 2;
}

/* A name of DNS: labels, each behind its length. */
SEC("hook/name") __u64 name(struct ctx *ctx)
{
	__u64 hash = 5381;
	__u32 at = ctx->n;
	if (at >= 16)
		return 1;
	rolled for (int labels = 0; labels < 4; labels++) {
		__u8 len = ctx->data[at++];
		if (len == 0)
			return hash;
		if (len > 15)
			return 2;
		rolled for (__u8 place = 0; place < len; place++) {
			hash = hash * 33 + ctx->data[at];
			at++;
		}
	}
	return 3;
}

/* The checksum of as many bytes as the header has. */
static __noinline __u32 checksum(const __u8 *bytes, __u32 words)
{
	__u32 sum = 0;
	if (words > 15)
		words = 15;
	rolled for (__u32 word = 0; word < words; word++)
		sum += bytes[word * 4] << 8 | bytes[word * 4 + 1];
	sum = (sum & 0xffff) + (sum >> 16);
	return ~sum & 0xffff;
}

SEC("hook/sum") __u64 sum(struct ctx *ctx)
{
	__u32 start = ctx->n;
	if (start > ROOM - 60)
		return 0;
	return checksum(&ctx->data[start], ctx->data[start] & 15);
}
