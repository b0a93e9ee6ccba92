/* Locks in the values of maps, and among variables. */
#include "bpf.h"

struct bpf_spin_lock {
	__u32 val;
};

static long (*spin_lock)(struct bpf_spin_lock *lock) = (void *)93;
static long (*spin_unlock)(struct bpf_spin_lock *lock) = (void *)94;

// ANCHOR: account
struct account {
	__u64 packets;
	struct bpf_spin_lock lock;
	__u32 longest;
	__u64 bytes;
};

struct {
	__uint(type, HASH);
	__uint(max_entries, 16);
	__type(key, __u32);
	__type(value, struct account);
} accounts SEC(".maps");

SEC("hook/account") int account(const __u16 *packet)
{
	__u32 source = packet[2], length = packet[1];
	struct account fresh = {}, *found = map_lookup(&accounts, &source);

	if (!found) {
		map_update(&accounts, &source, &fresh, 1);
		found = map_lookup(&accounts, &source);
		if (!found)
			return -1;
	}
	/* All three change together, for other programs and for the host. */
	spin_lock(&found->lock);
	found->packets += 1;
	found->bytes += length;
	if (found->longest < length)
		found->longest = length;
	spin_unlock(&found->lock);
	return 0;
}
// ANCHOR_END: account

__u64 turns = 5;
struct bpf_spin_lock turn __attribute__((section(".data.turn")));
__u64 taken __attribute__((section(".data.turn")));

SEC("hook/turns") int take_turns(void *packet)
{
	__u64 now;

	spin_lock(&turn);
	now = ++taken;
	spin_unlock(&turn);
	return now + turns;
}
