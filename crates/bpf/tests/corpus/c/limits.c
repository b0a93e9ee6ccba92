/* Who may do how much: buckets of tokens, windows, states of connections. */
#include "corpus.h"

struct bucket {
	__u64 stamp;
	__u32 tokens;
	__u32 dropped;
};

MAP(buckets, LRU_HASH, __u32, struct bucket, 64);

const volatile __u32 rate = 10;
const volatile __u32 burst = 25;

SEC("hook/allow") __u64 allow(struct ctx *ctx)
{
	__u32 source = ctx->n & 3;
	__u64 now = ctx->m;
	struct bucket *bucket = map_lookup(&buckets, &source);
	if (!bucket) {
		struct bucket fresh = { .stamp = now, .tokens = burst - 1 };
		map_update(&buckets, &source, &fresh, 0);
		return 1;
	}
	__u64 elapsed = now - bucket->stamp;
	if (elapsed > 1000)
		elapsed = 1000;
	__u32 tokens = bucket->tokens + (__u32)elapsed * rate / 100;
	if (tokens > burst)
		tokens = burst;
	bucket->stamp = now;
	if (tokens == 0) {
		__sync_fetch_and_add(&bucket->dropped, 1);
		return 0;
	}
	bucket->tokens = tokens - 1;
	return tokens;
}

/* A window of seconds, as a ring. */
struct window {
	__u32 counts[16];
	__u32 first;
	__s32 total;
};

MAP(windows, ARRAY, __u32, struct window, 4);

SEC("hook/window") __u64 window(struct ctx *ctx)
{
	__u32 which = ctx->n & 3, now = ctx->m;
	struct window *window = map_lookup(&windows, &which);
	if (!window)
		return -1;
	rolled for (int step = 0; step < 16; step++) {
		if (window->first == now)
			break;
		window->first++;
		__u32 slot = window->first & 15;
		window->total -= window->counts[slot];
		window->counts[slot] = 0;
	}
	window->counts[now & 15]++;
	return ++window->total;
}

/* How a connection goes on. */
enum state { CLOSED, LISTEN, SYN_SEEN, OPEN, CLOSING };

struct connection {
	enum state state;
	__u16 ports[2];
	__u8 flags, rest[3];
};

MAP(connections, HASH, __u64, struct connection, 32);

static __noinline int next(int state, __u8 flags)
{
	switch (state) {
	case CLOSED:
		return flags & 2 ? SYN_SEEN : CLOSED;
	case LISTEN:
		return SYN_SEEN;
	case SYN_SEEN:
		return flags & 16 ? OPEN : flags & 4 ? CLOSED : SYN_SEEN;
	case OPEN:
		return flags & 1 ? CLOSING : flags & 4 ? CLOSED : OPEN;
	case CLOSING:
		return flags & 16 ? CLOSED : CLOSING;
	default:
		return -1;
	}
}

SEC("hook/connection") __u64 connection(struct ctx *ctx)
{
	__u64 key = ctx->n & 1;
	struct connection *known = map_lookup(&connections, &key);
	if (!known) {
		struct connection fresh = { .state = LISTEN, .ports = { 80, ctx->n }, .flags = ctx->data[0] };
		map_update(&connections, &key, &fresh, 1);
		return 0;
	}
	int state = next(known->state, ctx->data[0]);
	if (state < 0)
		return -1;
	known->state = state;
	known->flags |= ctx->data[0];
	if (state == CLOSED)
		map_delete(&connections, &key);
	return state << 8 | known->flags;
}
