/* Compiled against the header that the host has made of its types. */
#include "bpf.h"
#include "session.h"

SEC("hook/session") __u64 session(struct session *session)
{
	return session->id + session->limits.bytes * 100 + session->limits.rates[1] * 10000 + session->port * 1000000;
}

SEC("hook/session") __u64 edges(struct session *session)
{
	return session->is_secure + session->offset * 10 + session->packed.far * 1000 + (session->type == -7) * 100000;
}
