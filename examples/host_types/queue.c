/* Says when a session of the server has as much to do as it may have. */
typedef unsigned char __u8;
typedef unsigned int __u32;
typedef unsigned long long __u64;

#define SEC(name) __attribute__((section(name), used))
#define adapts __attribute__((preserve_access_index))

// ANCHOR: types
/* The members that are read, in any order; the server has more of them, and all are elsewhere. */
struct Limits {
	__u32 queued;
} adapts;

enum State__tag { Idle, Open };

struct State {
	enum State__tag __tag;
	struct {
		__u32 priority;
	} Open;
} adapts;

struct Session {
	struct Limits limits;
	struct State state;
	struct {
		unsigned long len;
	} queue;
} adapts;
// ANCHOR_END: types

// ANCHOR: program
struct event {
	struct Session *session;
};

SEC("hook/full") __u64 is_full(struct event *event)
{
	struct Session *session = event->session;
	__u64 most = session->limits.queued;

	if (session->state.__tag == __builtin_preserve_enum_value(*(enum State__tag *)Open, 1))
		most += session->state.Open.priority;
	return session->queue.len >= most;
}
// ANCHOR_END: program
