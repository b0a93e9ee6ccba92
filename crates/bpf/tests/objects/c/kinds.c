/* Every other kind of map, and helpers that take numbers, texts and addresses. */
#include "bpf.h"

enum {
	PERCPU_HASH = 5,
	PERCPU_ARRAY = 6,
	LRU_PERCPU_HASH = 10,
	LPM_TRIE = 11,
	QUEUE = 22,
	STACK = 23,
	BLOOM_FILTER = 30,
};

static long (*map_delete)(void *map, const void *key) = (void *)3;
static long (*probe_read)(void *to, __u32 len, const void *from) = (void *)113;
static __u64 (*ktime)(void) = (void *)5;
static long (*trace_printk)(const char *format, __u32 len, ...) = (void *)6;
static __u32 (*random_number)(void) = (void *)7;
static __u32 (*processor)(void) = (void *)8;
static __u64 (*process)(void) = (void *)14;
static long (*map_push)(void *map, const void *value, __u64 flags) = (void *)87;
static long (*map_pop)(void *map, void *value) = (void *)88;
static long (*map_peek)(void *map, void *value) = (void *)89;
static long (*text_to_number)(const char *text, __u64 len, __u64 flags, long long *number) = (void *)105;
static long (*text_to_unsigned)(const char *text, __u64 len, __u64 flags, __u64 *number) = (void *)106;
static long (*format_text)(char *out, __u32 len, const char *format, __u64 *numbers, __u32 bytes) = (void *)165;
static void *(*lookup_of_cpu)(void *map, const void *key, __u32 cpu) = (void *)195;

struct prefix {
	__u32 length;
	__u8 address[4];
};

#define MAP(name, kind, key_type, value_type, count) \
	struct { \
		__uint(type, kind); \
		__uint(max_entries, count); \
		__type(key, key_type); \
		__type(value, value_type); \
	} name SEC(".maps")

MAP(per_cpu, PERCPU_ARRAY, __u32, __u64, 4);
MAP(per_cpu_hash, PERCPU_HASH, __u32, __u64, 4);
MAP(recent, LRU_HASH, __u32, __u64, 2);
MAP(recent_per_cpu, LRU_PERCPU_HASH, __u32, __u64, 2);

struct {
	__uint(type, LPM_TRIE);
	__uint(max_entries, 4);
	__uint(map_flags, 1);
	__type(key, struct prefix);
	__type(value, __u64);
} routes SEC(".maps");

#define VALUES(name, kind, count) \
	struct { \
		__uint(type, kind); \
		__uint(max_entries, count); \
		__type(value, __u64); \
	} name SEC(".maps")

VALUES(queue, QUEUE, 2);
VALUES(stack, STACK, 2);
VALUES(seen, BLOOM_FILTER, 64);

/* How often this CPU has counted, by a value of its own in each map: 1 more each time. */
SEC("hook/cpus") __u64 cpus(__u8 *packet)
{
	__u32 key = 1, cpu = processor();
	if (!map_lookup(&per_cpu_hash, &key))
		map_update(&per_cpu_hash, &key, &(__u64){ 0 }, 0);
	if (!map_lookup(&recent_per_cpu, &key))
		map_update(&recent_per_cpu, &key, &(__u64){ 0 }, 0);
	__u64 *array = lookup_of_cpu(&per_cpu, &key, cpu);
	__u64 *hash = lookup_of_cpu(&per_cpu_hash, &key, cpu);
	__u64 *lru = lookup_of_cpu(&recent_per_cpu, &key, cpu);
	if (!array || !hash || !lru)
		return -1;
	__sync_fetch_and_add(array, 1);
	__sync_fetch_and_add(hash, 10);
	__sync_fetch_and_add(lru, 100);
	return *array + *hash + *lru;
}

/* Three keys do not fit: one of the first two is gone. */
SEC("hook/lru") __u64 lru(__u8 *packet)
{
	__u64 found = 0;
	for (__u64 i = 0; i < 3; i++) {
		__u32 key = i;
		if (map_update(&recent, &key, &i, 0))
			return -1;
	}
	for (__u64 i = 0; i < 3; i++) {
		__u32 key = i;
		found += !!map_lookup(&recent, &key);
	}
	return found;
}

/* 10.0.0.0/8 leads to 1, 10.1.0.0/16 to 2. */
SEC("hook/routes") __u64 route(__u8 *packet)
{
	struct prefix wide = { 8, { 10 } }, narrow = { 16, { 10, 1 } };
	__u64 one = 1, two = 2;
	map_update(&routes, &wide, &one, 0);
	map_update(&routes, &narrow, &two, 0);
	struct prefix first = { 32, { 10, 9, 9, 9 } }, second = { 32, { 10, 1, 2, 3 } }, third = { 32, { 11, 1, 2, 3 } };
	__u64 *a = map_lookup(&routes, &first), *b = map_lookup(&routes, &second), *c = map_lookup(&routes, &third);
	__u64 found = (a ? *a : 0) + 10 * (b ? *b : 0) + 100 * (c ? *c : 0);
	map_delete(&routes, &narrow);
	b = map_lookup(&routes, &second);
	return found + 1000 * (b ? *b : 0);
}

SEC("hook/queues") __u64 queues(__u8 *packet)
{
	__u64 digits = 0;
	for (__u64 value = 1; value < 4; value++) {
		/* The third does not fit: refused, or in place of the oldest. */
		digits = digits * 10 + (map_push(&queue, &value, 0) != 0);
		digits = digits * 10 + (map_push(&stack, &value, 2) != 0);
	}
	__u64 value = 0;
	map_peek(&queue, &value);
	digits = digits * 10 + value;
	for (int i = 0; i < 2; i++) {
		map_pop(&queue, &value);
		digits = digits * 10 + value;
		map_pop(&stack, &value);
		digits = digits * 10 + value;
	}
	return digits * 10 + (map_pop(&queue, &value) != 0 && map_pop(&stack, &value) != 0);
}

SEC("hook/bloom") __u64 bloom(__u8 *packet)
{
	__u64 there = 77, other = 78;
	map_push(&seen, &there, 0);
	return (map_peek(&seen, &there) == 0) * 2 + (map_peek(&seen, &other) != 0);
}

SEC("hook/texts") __u64 texts(__u8 *packet)
{
	static const char format[] = "%d-%05x";
	char out[16] = {}, signed_text[4] = "-42", unsigned_text[8] = "0x1f";
	long long number = 0;
	__u64 other = 0, numbers[2] = { 7, 0xab };
	if (text_to_number(signed_text, 3, 10, &number) != 3 || text_to_unsigned(unsigned_text, 4, 0, &other) != 4)
		return -1;
	if (format_text(out, sizeof(out), format, numbers, sizeof(numbers)) != 8 || strncmp_(out, 8, "7-000ab"))
		return -2;
	static const char line[] = "number %d";
	trace_printk(line, sizeof(line), 5, 0, 0);
	return number + other;
}

SEC("hook/kernel") __u64 kernel(__u8 *packet)
{
	__u64 before = ktime(), different = 0;
	__u32 first = random_number();
	for (int i = 0; i < 16; i++)
		different += random_number() != first;
	return (ktime() >= before) + 2 * (different > 0) + 4 * (process() >> 32 != 0);
}

SEC("hook/probe") __u64 probe(__u64 *packet)
{
	__u64 value = 5;
	long missing = probe_read(&value, 8, (void *)8);
	return (missing == -14) * 2 + (value == 0);
}
