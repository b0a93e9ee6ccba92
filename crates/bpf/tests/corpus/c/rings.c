/* Records of ring buffers: of constant and of variable lengths, filled in part, discarded. */
#include "corpus.h"

RING(events, 4096);
MAP(places, ARRAY, __u32, __u8[256], 2);

struct event {
	__u32 kind;
	__u16 len;
	__u8 name[26];
	__u64 stamps[4];
};

SEC("hook/reserve") __u64 reserve(struct ctx *ctx)
{
	struct event *event = ringbuf_reserve(&events, sizeof(*event), 0);
	if (!event)
		return 1;
	__u32 len = ctx->n;
	if (len > sizeof(event->name)) {
		ringbuf_discard(event, 0);
		return 2;
	}
	event->kind = ctx->m;
	event->len = len;
	rolled for (__u32 at = 0; at < sizeof(event->name); at++)
		event->name[at] = at < len ? ctx->data[at] : 0;
	for (int at = 0; at < 4; at++)
		event->stamps[at] = 0;
	event->stamps[ctx->data[0] & 3] = ctx->len;
	ringbuf_submit(event, 0);
	return 0;
}

/* As many bytes as there are, from the stack. */
SEC("hook/output") __u64 output(struct ctx *ctx)
{
	__u8 bytes[64];
	__builtin_memcpy(bytes, ctx->data, sizeof(bytes));
	__u32 len = ctx->n;
	if (len < 1 || len > sizeof(bytes))
		return 1;
	return ringbuf_output(&events, bytes, len, 0);
}

/* A part of them, with signs. */
SEC("hook/part") __u64 part(struct ctx *ctx)
{
	__u8 bytes[64];
	__builtin_memcpy(bytes, ctx->data, sizeof(bytes));
	int from = ctx->i, len = ctx->n;
	if (from < 0 || from > 31)
		return 1;
	if (len <= 0 || len > 32)
		return 2;
	return ringbuf_output(&events, bytes + from, len, 0);
}

/* From a value of a map, whose length is compared behind a call. */
SEC("hook/value") __u64 value(struct ctx *ctx)
{
	__u32 key = 0, len = ctx->n;
	__u8 *bytes = map_lookup(&places, &key);
	if (!bytes)
		return 1;
	if (len > 128)
		len = 128;
	rolled for (__u32 at = 0; at < len && at < ROOM; at++)
		bytes[at] = ctx->data[at];
	key = 1;
	__u8 *other = map_lookup(&places, &key);
	if (other)
		other[len] = len;
	return ringbuf_output(&events, bytes, len, 0);
}

/* An event whose name ends where the text does. */
SEC("hook/text") __u64 text(struct ctx *ctx)
{
	struct event event = { .kind = ctx->m };
	__u32 len = 0;
	rolled while (len < sizeof(event.name) - 1) {
		__u8 letter = ctx->data[len];
		if (!letter)
			break;
		event.name[len++] = letter;
	}
	event.name[len] = '.';
	event.len = len;
	ringbuf_output(&events, &event, 6 + len + 1, 0);
	return len;
}
