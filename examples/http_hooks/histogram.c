/* Counts how long answers take, by powers of two of microseconds. */
#include "http.h"

struct {
	__uint(type, ARRAY);
	__uint(max_entries, 32);
	__type(key, __u32);
	__type(value, __u64);
} latencies SEC(".maps");

SEC("hook/http.answered") int histogram(struct answered *answered)
{
	__u64 rest = answered->nanoseconds / 1000;
	__u32 power = 0;
	if (rest >> 16) {
		rest >>= 16;
		power += 16;
	}
	if (rest >> 8) {
		rest >>= 8;
		power += 8;
	}
	if (rest >> 4) {
		rest >>= 4;
		power += 4;
	}
	if (rest >> 2) {
		rest >>= 2;
		power += 2;
	}
	if (rest >> 1)
		power += 1;
	if (power > 31)
		power = 31;
	__u64 *count = map_lookup(&latencies, &power);
	if (count)
		__sync_fetch_and_add(count, 1);
	return 0;
}
