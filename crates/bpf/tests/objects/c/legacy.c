/* Maps of the old kind. */
#include "bpf.h"

struct bpf_map_def {
	__u32 type, key_size, value_size, max_entries, map_flags;
};

struct bpf_map_def SEC("maps") first = { ARRAY, 4, 8, 2, 0 };
struct bpf_map_def SEC("maps") second = { LRU_HASH, 4, 4, 16, 0 };

SEC("socket") __u64 legacy(void *context)
{
	__u32 key = 1;
	__u64 *value = map_lookup(&first, &key);
	if (!value)
		return 0;
	*value += 7;
	__u32 small = *value;
	map_update(&second, &key, &small, 0);
	return *value;
}
