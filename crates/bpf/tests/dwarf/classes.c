/* Where members of classes are. */
#include "../objects/c/bpf.h"

#define adapts __attribute__((preserve_access_index))

struct deep {
	long here;
};

struct Host {
	int inherited;
	struct {
		struct deep deep;
	} inner;
} adapts;

struct Apart {
	struct deep deep;
} adapts;

struct Local {
	struct deep deep;
} adapts;

struct Base {
	int none;
} adapts;

#define place(of, member) __builtin_preserve_field_info(((struct of *)0)->member, 0)

SEC("hook/classes") __u64 places(void *context)
{
	return place(Host, inherited) + place(Host, inner.deep.here) * 100 + place(Apart, deep.here) * 10000 +
	       place(Local, deep.here) * 1000000 +
	       __builtin_preserve_field_info(((struct Base *)0)->none, 2) * 100000000ULL;
}
