/* What the server's hooks show to programs, and the Linux helpers used. http_hooks.rs has the same in Rust. */
typedef unsigned int __u32;
typedef unsigned long long __u64;

#define SEC(name) __attribute__((section(name), used))
#define __uint(name, val) int(*name)[val]
#define __type(name, val) typeof(val) *name

enum { ARRAY = 2, LRU_HASH = 9 };

static void *(*map_lookup)(void *map, const void *key) = (void *)1;
static long (*map_update)(void *map, const void *key, const void *value, __u64 flags) = (void *)2;

/* http.request: called before a request is answered; a result other than 0 refuses it. */
struct request {
	__u64 now; /* nanoseconds */
	__u32 client;
	__u32 length;
};

/* http.answered: called after the answer. */
struct answered {
	__u64 nanoseconds;
	__u32 client;
	__u32 status;
};
