/* What programs of these tests need; the numbers are Linux's. */
typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;

#define SEC(name) __attribute__((section(name), used))
#define __uint(name, val) int(*name)[val]
#define __type(name, val) typeof(val) *name
#define __noinline __attribute__((noinline))

enum { HASH = 1, ARRAY = 2, PROG_ARRAY = 3, LRU_HASH = 9, RINGBUF = 27 };

static void *(*map_lookup)(void *map, const void *key) = (void *)1;
static long (*map_update)(void *map, const void *key, const void *value, __u64 flags) = (void *)2;
static long (*tail_call)(void *ctx, void *map, __u32 index) = (void *)12;
static long (*ringbuf_output)(void *map, void *data, __u64 len, __u64 flags) = (void *)130;
static void *(*ringbuf_reserve)(void *map, __u64 len, __u64 flags) = (void *)131;
static void (*ringbuf_submit)(void *data, __u64 flags) = (void *)132;
static long (*for_each)(void *map, void *function, void *ctx, __u64 flags) = (void *)164;
static long (*loop)(__u32 count, void *function, void *ctx, __u64 flags) = (void *)181;
static long (*strncmp_)(const char *one, __u32 len, const char *other) = (void *)182;
