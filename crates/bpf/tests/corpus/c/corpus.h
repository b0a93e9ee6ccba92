/* What programs of this corpus need; the numbers are Linux's. */
typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;
typedef signed char __s8;
typedef short __s16;
typedef int __s32;
typedef long long __s64;

#define SEC(name) __attribute__((section(name), used))
#define __uint(name, val) int(*name)[val]
#define __type(name, val) typeof(val) *name
#define __noinline __attribute__((noinline))
#define __packed __attribute__((packed))
/* So that the compiler does not know a number, and keeps what is compared apart from what is used. */
#define unknown(number) asm volatile("" : "+r"(number))
/* What is left of a division with sign, for which processors before v4 have no instruction. */
#if __BPF_CPU_VERSION__ >= 4
#define remainder(number, by) ((number) % (by))
#else
#define remainder(number, by) ((number) < 0 ? -(int)(-(__u32)(number) % (by)) : (int)((__u32)(number) % (by)))
#endif
/* A number below `by`, made of the lowest byte without a division, which processors before v4 had no remainder for. */
static inline __u32 scaled(__u32 number, __u32 by)
{
	return (number & 0xff) * by >> 8;
}

#define rolled _Pragma("clang loop unroll(disable)")

enum {
	HASH = 1,
	ARRAY = 2,
	PERCPU_HASH = 5,
	PERCPU_ARRAY = 6,
	LRU_HASH = 9,
	LPM_TRIE = 11,
	QUEUE = 22,
	RINGBUF = 27,
};

static void *(*map_lookup)(void *map, const void *key) = (void *)1;
static long (*map_update)(void *map, const void *key, const void *value, __u64 flags) = (void *)2;
static long (*map_delete)(void *map, const void *key) = (void *)3;
static long (*map_push)(void *map, const void *value, __u64 flags) = (void *)87;
static long (*text_to_number)(const char *text, __u64 len, __u64 flags, __s64 *number) = (void *)105;
static long (*ringbuf_output)(void *map, void *data, __u64 len, __u64 flags) = (void *)130;
static void *(*ringbuf_reserve)(void *map, __u64 len, __u64 flags) = (void *)131;
static void (*ringbuf_submit)(void *data, __u64 flags) = (void *)132;
static void (*ringbuf_discard)(void *data, __u64 flags) = (void *)133;
static long (*for_each)(void *map, void *function, void *ctx, __u64 flags) = (void *)164;
static long (*loop)(__u32 count, void *function, void *ctx, __u64 flags) = (void *)181;
static long (*compare_text)(const char *one, __u32 len, const char *other) = (void *)182;

#define MAP(name, kind, key_type, value_type, count) \
	struct { \
		__uint(type, kind); \
		__uint(max_entries, count); \
		__type(key, key_type); \
		__type(value, value_type); \
	} name SEC(".maps")

#define RING(name, count) \
	struct { \
		__uint(type, RINGBUF); \
		__uint(max_entries, count); \
	} name SEC(".maps")

/* What each program gets: how many bytes of the packet there are, two numbers, and the bytes. */
#define ROOM 112
struct ctx {
	__u32 len;
	__u32 n;
	__s32 i;
	__u32 m;
	__u8 data[ROOM];
};
