/* A rate limiter: each client may send 20 requests at once, and one more each second. */
#include "http.h"

#define MOST 20
#define EACH 1000000000ULL

struct bucket {
	__u64 tokens;
	__u64 filled;
};

struct {
	__uint(type, LRU_HASH);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, struct bucket);
} buckets SEC(".maps");

SEC("hook/http.request") int limit(struct request *request)
{
	__u32 client = request->client;
	__u64 now = request->now;
	struct bucket *bucket = map_lookup(&buckets, &client);
	if (!bucket) {
		struct bucket first = { MOST - 1, now };
		map_update(&buckets, &client, &first, 0);
		return 0;
	}
	/* Two requests of a client at once may both take the last token: this is a limiter, not a lock. */
	__u64 more = now > bucket->filled ? (now - bucket->filled) / EACH : 0;
	if (more) {
		__u64 tokens = bucket->tokens + more;
		bucket->tokens = tokens > MOST ? MOST : tokens;
		bucket->filled += more * EACH;
	}
	if (!bucket->tokens)
		return 429;
	bucket->tokens--;
	return 0;
}
