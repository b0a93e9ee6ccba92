/* Timers in the values of maps. */
#include "bpf.h"

struct bpf_timer {
	__u64 opaque[2];
} __attribute__((aligned(8)));

static long (*map_delete)(void *map, const void *key) = (void *)3;
static long (*timer_init)(struct bpf_timer *timer, void *map, __u64 flags) = (void *)169;
static long (*timer_set_callback)(struct bpf_timer *timer, void *callback) = (void *)170;
static long (*timer_start)(struct bpf_timer *timer, __u64 nsecs, __u64 flags) = (void *)171;
static long (*timer_cancel)(struct bpf_timer *timer) = (void *)172;

enum { CLOCK_MONOTONIC = 1, EBUSY = 16 };

struct packet {
	__u8 kind;
	__u8 flags;
	__u16 length;
	__u32 source;
	__u64 stamp;
};

// ANCHOR: lease
/* What a source may still send. */
struct lease {
	__u64 left;
	struct {
		__u32 renewed;
		struct bpf_timer timer;
	} refill;
};

struct {
	__uint(type, LRU_HASH);
	__uint(max_entries, 64);
	__type(key, __u32);
	__type(value, struct lease);
} leases SEC(".maps");

const volatile __u64 interval = 1000;

/* A lease that nobody has used up by then is given up; others begin anew. */
static int refill(void *map, __u32 *source, struct lease *lease)
{
	if (lease->left == 2) {
		map_delete(map, source);
		return 0;
	}
	lease->left = 2;
	lease->refill.renewed++;
	timer_start(&lease->refill.timer, interval, 0);
	return 0;
}

/* Two packets of a source pass in an interval. */
SEC("test")
int limit(struct packet *packet)
{
	__u32 source = packet->source;
	struct lease *lease = map_lookup(&leases, &source);

	if (!lease) {
		struct lease first = { .left = 2 };

		map_update(&leases, &source, &first, 1);
		lease = map_lookup(&leases, &source);
		if (!lease)
			return -1;
		if (timer_init(&lease->refill.timer, &leases, CLOCK_MONOTONIC) == 0) {
			timer_set_callback(&lease->refill.timer, refill);
			timer_start(&lease->refill.timer, interval, 0);
		}
	}
	if (lease->left == 0)
		return 0;
	lease->left--;
	return 1;
}
// ANCHOR_END: lease

SEC("test")
int revoke(struct packet *packet)
{
	__u32 source = packet->source;
	struct lease *lease = map_lookup(&leases, &source);

	return lease ? timer_cancel(&lease->refill.timer) : -1;
}

/* What the verifier refuses, and the line of that. */
SEC("test")
int forges(struct packet *packet)
{
	__u32 source = packet->source;
	struct lease *lease = map_lookup(&leases, &source);

	if (lease)
		lease->refill.timer.opaque[1] = packet->stamp;
	return 0;
}
