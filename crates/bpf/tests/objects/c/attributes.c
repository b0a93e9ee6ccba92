/* Maps with attributes: some that programs only read, one with few functions, one that objects share. */
#include "bpf.h"

#define __array(name, val) typeof(val) *name[]

enum { ARRAY_OF_MAPS = 12, LPM_TRIE = 11, QUEUE = 22, BLOOM_FILTER = 30 };
enum { NO_PREALLOC = 1, NO_COMMON_LRU = 2, RDONLY_PROG = 0x80, MMAPABLE = 0x400, INNER_MAP = 0x1000 };

static long (*map_delete)(void *map, const void *key) = (void *)3;
static long (*map_push)(void *map, const void *value, __u64 flags) = (void *)87;
static long (*map_pop)(void *map, void *value) = (void *)88;
static long (*map_peek)(void *map, void *value) = (void *)89;

struct {
	__uint(type, ARRAY);
	__uint(max_entries, 4);
	__uint(map_flags, RDONLY_PROG | MMAPABLE);
	__type(key, __u32);
	__type(value, __u64);
} limits SEC(".maps");

struct {
	__uint(type, HASH);
	__uint(max_entries, 4);
	__uint(map_flags, RDONLY_PROG | NO_PREALLOC);
	__type(key, __u32);
	__type(value, __u64);
} names SEC(".maps");

struct {
	__uint(type, QUEUE);
	__uint(max_entries, 4);
	__uint(map_flags, RDONLY_PROG);
	__type(value, __u64);
} jobs SEC(".maps");

struct inner {
	__uint(type, ARRAY);
	__uint(max_entries, 4);
	__uint(map_flags, RDONLY_PROG | INNER_MAP);
	__type(key, __u32);
	__type(value, __u64);
} first SEC(".maps");

struct {
	__uint(type, ARRAY_OF_MAPS);
	__uint(max_entries, 1);
	__type(key, __u32);
	__array(values, struct inner);
} outer SEC(".maps") = {
	.values = { [0] = &first },
};

struct {
	__uint(type, BLOOM_FILTER);
	__uint(max_entries, 1000);
	__uint(map_extra, 3);
	__type(value, __u64);
} seen SEC(".maps");

struct {
	__uint(type, LRU_HASH);
	__uint(max_entries, 16);
	__uint(map_flags, NO_COMMON_LRU);
	__uint(pinning, 1);
	__type(key, __u32);
	__type(value, __u64);
} shared SEC(".maps");

/* Reads every map that it may not change, and counts in the shared one. */
SEC("hook/reads") __u64 reads(void *context)
{
	__u32 key = 1;
	__u64 job = 0, sum = 0;
	__u64 *value = map_lookup(&limits, &key);
	if (value)
		sum += *value;
	value = map_lookup(&names, &key);
	if (value)
		sum += *value;
	if (!map_peek(&jobs, &job))
		sum += job;
	void *inner = map_lookup(&outer, &(__u32){ 0 });
	if (inner) {
		value = map_lookup(inner, &key);
		if (value)
			sum += *value;
	}
	value = map_lookup(&shared, &key);
	if (value)
		*value += 1;
	else
		map_update(&shared, &key, &(__u64){ 1 }, 0);
	return sum;
}

SEC("hook/stores") __u64 stores(void *context)
{
	__u64 *value = map_lookup(&limits, &(__u32){ 1 });
	if (value)
		*value = 1;
	return 0;
}

SEC("hook/adds") __u64 adds(void *context)
{
	__u64 *value = map_lookup(&names, &(__u32){ 1 });
	if (value)
		__sync_fetch_and_add(value, 1);
	return 0;
}

SEC("hook/stores_inside") __u64 stores_inside(void *context)
{
	void *inner = map_lookup(&outer, &(__u32){ 0 });
	__u64 *value = inner ? map_lookup(inner, &(__u32){ 1 }) : 0;
	if (value)
		*value = 1;
	return 0;
}

SEC("hook/updates") __u64 updates(void *context)
{
	return map_update(&names, &(__u32){ 1 }, &(__u64){ 1 }, 0);
}

SEC("hook/deletes") __u64 deletes(void *context)
{
	return map_delete(&names, &(__u32){ 1 });
}

SEC("hook/pushes") __u64 pushes(void *context)
{
	return map_push(&jobs, &(__u64){ 1 }, 0);
}

SEC("hook/pops") __u64 pops(void *context)
{
	__u64 job;
	return map_pop(&jobs, &job);
}

static long store_each(void *map, const __u32 *key, __u64 *value, void *context)
{
	*value = 1;
	return 0;
}

SEC("hook/each") __u64 each(void *context)
{
	return for_each(&limits, store_each, 0, 0);
}
