/* Commands that the host sends to its programs. */
#include "bpf.h"

enum { USER_RINGBUF = 31 };

struct dynptr {
	__u64 opaque[2];
};

static long (*dynptr_read)(void *dst, __u32 len, const struct dynptr *src, __u32 offset, __u64 flags) = (void *)201;
static long (*user_ringbuf_drain)(void *map, void *each, void *ctx, __u64 flags) = (void *)209;

// ANCHOR: commands
struct command {
	__u32 source;
	__u32 limit;
};

struct {
	__uint(type, USER_RINGBUF);
	__uint(max_entries, 4096);
} commands SEC(".maps");

struct {
	__uint(type, HASH);
	__uint(max_entries, 64);
	__type(key, __u32);
	__type(value, __u32);
} limits SEC(".maps");

static long obey(struct dynptr *sample, __u64 *obeyed)
{
	struct command command;

	if (dynptr_read(&command, sizeof(command), sample, 0, 0))
		return 0;
	map_update(&limits, &command.source, &command.limit, 0);
	*obeyed += 1;
	return command.limit == 0;
}

SEC("test")
int poll(void *packet)
{
	__u64 obeyed = 0;
	long seen = user_ringbuf_drain(&commands, obey, &obeyed, 0);

	return seen < 0 ? seen : seen * 100 + obeyed;
}
// ANCHOR_END: commands
