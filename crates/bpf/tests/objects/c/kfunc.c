/* Functions and objects of the host. */
#include "bpf.h"

#define __ksym __attribute__((section(".ksyms")))

// ANCHOR: kfunc
struct session; /* the host's: programs pass it on */

extern struct session *session_find(__u32 source) __ksym;
extern __u64 session_count(struct session *session, const void *bytes, __u64 len) __ksym;
extern void session_put(struct session *session) __ksym;

SEC("hook/counted") __u64 counted(const __u8 *packet)
{
	struct session *session = session_find(packet[4]);
	__u64 bytes;

	if (!session) /* without this it is refused */
		return 0;
	bytes = session_count(session, packet, 16);
	session_put(session); /* and without this */
	return bytes;
}
// ANCHOR_END: kfunc
