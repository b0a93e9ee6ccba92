/* Maps that types define, variables of all sections, several programs, and what is called from other sections. */
#include "bpf.h"

struct packet {
	__u8 kind;
	__u8 flags;
	__u16 length;
	__u32 source;
	__u64 stamp;
};

struct count {
	__u64 packets;
	__u64 bytes;
};

struct {
	__uint(type, HASH);
	__uint(max_entries, 64);
	__type(key, __u32);
	__type(value, struct count);
} counts SEC(".maps");

struct {
	__uint(type, RINGBUF);
	__uint(max_entries, 4096);
} events SEC(".maps");

struct {
	__uint(type, ARRAY);
	__uint(max_entries, 8);
	__uint(key_size, 4);
	__uint(value_size, 8);
} kinds SEC(".maps");

const volatile __u32 limit = 1500;
__u64 total = 1000;
__u64 seen;
static volatile __u32 last[4];
static const char name[] = "palimpsest";

/* In a section of its own, and called from others. */
static __noinline SEC("shared") __u64 add(struct count *count, __u64 length)
{
	__sync_fetch_and_add(&count->packets, 1);
	__sync_fetch_and_add(&count->bytes, length);
	return length;
}

static __noinline __u64 twice(__u64 x)
{
	return x * 2;
}

SEC("hook/packet") int count(struct packet *packet)
{
	__u32 key = packet->source;
	struct count *found = map_lookup(&counts, &key);
	if (!found) {
		struct count empty = {};
		map_update(&counts, &key, &empty, 1);
		found = map_lookup(&counts, &key);
		if (!found)
			return -1;
	}
	total += add(found, packet->length);
	seen++;
	last[packet->kind & 3] = key;
	if (packet->length > limit) {
		__u64 *record = ringbuf_reserve(&events, 16, 0);
		if (record) {
			record[0] = packet->stamp;
			record[1] = twice(packet->length);
			ringbuf_submit(record, 0);
		}
		return 1;
	}
	return 0;
}

static long sum_up(void *map, const __u32 *key, __u64 *value, __u64 *sum)
{
	*sum += *value;
	return 0;
}

static long fill(__u32 index, __u32 *start)
{
	__u32 key = index & 7;
	__u64 value = *start + index;
	map_update(&kinds, &key, &value, 0);
	return 0;
}

SEC("hook/sum") __u64 sum(struct packet *packet)
{
	__u64 sum = 0;
	__u32 start = packet->kind;
	loop(8, fill, &start, 0);
	for_each(&kinds, sum_up, &sum, 0);
	return sum;
}

SEC("hook/text") int is_ours(struct packet *packet)
{
	char text[12] = {};
	__builtin_memcpy(text, packet, 11);
	return strncmp_(text, 11, name);
}

SEC("hook/loops") __u64 checksum(__u8 *bytes)
{
	__u64 hash = 0xcbf29ce484222325ull;
#pragma clang loop unroll(disable)
	for (int i = 0; i < 16; i++)
		hash = (hash ^ bytes[i]) * 0x100000001b3ull;
	return hash;
}

SEC("hook/wrong") int wrong(struct packet *packet)
{
	__u32 key = 1;
	struct count *found = map_lookup(&counts, &key);
	return found->packets;
}
