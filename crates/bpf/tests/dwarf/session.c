/* An extension that knows a few members of a host's types in Rust, and not where they are. */
#include "../objects/c/bpf.h"

#define adapts __attribute__((preserve_access_index))

// ANCHOR: program
struct Limits {
	__u32 rates[3];
	__u64 bytes;
} adapts;

enum Phase { Open = 1, Closed };

struct Job {
	__u16 number;
} adapts;

/* What an enum with fields looks like: a number that says which variant it is, and the variants. */
enum State__tag { Idle, Busy };

struct State {
	enum State__tag __tag;
	struct {
		struct Job __0;
	} Busy;
} adapts;

struct Session {
	__u32 id;
	_Bool is_secure;
	struct {
		unsigned long length;
	} name;
	struct Limits limits;
	enum Phase phase;
	struct State state;
} adapts;

SEC("hook/session") __u64 session(struct Session *session)
{
	__u64 result = session->id + session->limits.bytes * 100 + session->limits.rates[1] * 1000;

	if (session->phase == __builtin_preserve_enum_value(*(enum Phase *)Open, 1))
		result += 10000;
	if (session->state.__tag == __builtin_preserve_enum_value(*(enum State__tag *)Busy, 1))
		result += session->state.Busy.__0.number * 100000;
	return result + session->name.length * 100000000;
}
// ANCHOR_END: program

struct Session___more {
	struct {
		__u32 __0;
		short __1;
	} mark;
	signed char type;
} adapts;

SEC("hook/session") long long more(struct Session___more *session)
{
	return session->mark.__0 + session->mark.__1 * 1000L + session->type * 1000000L;
}

struct Session___gone {
	__u32 retries;
} adapts;

SEC("hook/session") __u64 differences(struct Session___gone *session)
{
	if (__builtin_preserve_field_info(session->retries, 2))
		return session->retries;
	return __builtin_preserve_type_info(*(struct Session *)0, 1);
}

enum Wide { Huge };

SEC("hook/session") __u64 values(void *context)
{
	return __builtin_preserve_enum_value(*(enum Phase *)Closed, 1) +
	       __builtin_preserve_enum_value(*(enum Wide *)Huge, 1);
}
