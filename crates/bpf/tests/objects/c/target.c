/* The layout that programs of adapt.c are adapted to. */
#include "bpf.h"

struct inner {
	__u64 before;
	__u16 b[4];
	__u32 a;
};

struct request {
	__u64 stamp;
	union {
		struct {
			__u32 id;
		};
		__u64 wide;
	};
	__u8 small;
	struct inner in;
};

enum verdict { NONE, PASS, ASK, DROP = 40 };

struct request request;
enum verdict verdict;

SEC("hook/none") int none(void *context)
{
	return request.id + verdict;
}
