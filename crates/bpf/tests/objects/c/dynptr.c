/* Memory of lengths that are known when the program runs. */
#include "bpf.h"

struct dynptr {
	__u64 opaque[2];
};

static long (*dynptr_from_mem)(void *data, __u32 size, __u64 flags, struct dynptr *ptr) = (void *)197;
static long (*ringbuf_reserve_dynptr)(void *map, __u32 size, __u64 flags, struct dynptr *ptr) = (void *)198;
static void (*ringbuf_submit_dynptr)(struct dynptr *ptr, __u64 flags) = (void *)199;
static void (*ringbuf_discard_dynptr)(struct dynptr *ptr, __u64 flags) = (void *)200;
static long (*dynptr_read)(void *dst, __u32 len, const struct dynptr *src, __u32 offset, __u64 flags) = (void *)201;
static long (*dynptr_write)(const struct dynptr *dst, __u32 offset, void *src, __u32 len, __u64 flags) = (void *)202;
static void *(*dynptr_data)(const struct dynptr *ptr, __u32 offset, __u32 len) = (void *)203;

struct packet {
	__u8 kind;
	__u8 flags;
	__u16 length;
	__u32 source;
	__u64 stamp;
};

struct log {
	__u8 bytes[64];
};

struct {
	__uint(type, ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct log);
} logs SEC(".maps");

struct {
	__uint(type, RINGBUF);
	__uint(max_entries, 4096);
} events SEC(".maps");

/* Puts the stamp where the packet says, and reads it from there. */
SEC("test")
int places(struct packet *packet)
{
	__u64 stamp = packet->stamp, found = 0;
	struct dynptr memory;
	__u32 zero = 0;
	struct log *log = map_lookup(&logs, &zero);

	if (!log || dynptr_from_mem(log, sizeof(*log), 0, &memory))
		return -1;
	if (dynptr_write(&memory, packet->length, &stamp, sizeof(stamp), 0))
		return -2;
	if (dynptr_read(&found, sizeof(found), &memory, packet->length, 0))
		return -3;
	return found;
}

// ANCHOR: records
/* A record as long as the packet says, if it has room for the stamp. */
SEC("test")
int records(struct packet *packet)
{
	struct dynptr record;
	__u64 *first;

	ringbuf_reserve_dynptr(&events, packet->length, 0, &record);
	first = dynptr_data(&record, 0, sizeof(*first));
	if (!first) {
		ringbuf_discard_dynptr(&record, 0);
		return 0;
	}
	*first = packet->stamp;
	ringbuf_submit_dynptr(&record, 0);
	return 1;
}
// ANCHOR_END: records

/* What the verifier refuses, and the line of that: the record is not given back. */
SEC("test")
int keeps(struct packet *packet)
{
	struct dynptr record;

	ringbuf_reserve_dynptr(&events, packet->length, 0, &record);
	return 0;
}
