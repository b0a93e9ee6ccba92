/* Compiled against the types of an older host: members are elsewhere, one has another size, one is not there yet. */
#include "bpf.h"

#define adapts __attribute__((preserve_access_index))

static long (*probe_read)(void *to, __u32 len, const void *from) = (void *)4;

struct Limits {
	__u64 bytes;
	__u32 rates[2];
} adapts;

// ANCHOR: session
struct session {
	__u32 id;
	struct Limits limits;
	__u16 port;
	struct session *next;
} adapts;

SEC("hook/session") __u64 session(struct session *session)
{
	return session->id + session->limits.bytes * 100 + session->limits.rates[1] * 10000 + session->port * 1000000;
}
// ANCHOR_END: session

struct session___newer {
	_Bool is_secure;
} adapts;

struct session___gone {
	__u32 retries;
} adapts;

SEC("hook/session") __u64 differences(struct session *session)
{
	struct session___newer *newer = (void *)session;
	struct session___gone *gone = (void *)session;
	__u64 result = __builtin_preserve_type_info(*session, 1);

	if (__builtin_preserve_field_info(newer->is_secure, 2))
		result += newer->is_secure ? 1000 : 2000;
	if (__builtin_preserve_field_info(gone->retries, 2))
		result += gone->retries + 10000;
	return result;
}

/* The id of the session behind this one. */
SEC("hook/session") __u64 follows(struct session *session)
{
	struct session *next = session->next;
	__u32 id = 0;

	probe_read(&id, sizeof(id), __builtin_preserve_access_index(&next->id));
	return id;
}
