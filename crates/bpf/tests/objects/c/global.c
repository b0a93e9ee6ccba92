/* Global functions, which are verified alone: to follow each of their calls would take for ever. */
#include "bpf.h"

#define __arg_ctx __attribute__((btf_decl_tag("arg:ctx")))
#define __arg_nonnull __attribute__((btf_decl_tag("arg:nonnull")))

struct {
	__uint(type, ARRAY);
	__type(key, __u32);
	__type(value, __u64[8]);
	__uint(max_entries, 1);
} places SEC(".maps");

// ANCHOR: walk
struct walk {
	__u64 left;
	__u64 sum;
};

#define EIGHT(step, walk, by)                                                                                \
	(step(walk, by) + step(walk, by + 1) + step(walk, by + 2) + step(walk, by + 3) + step(walk, by + 4) + \
	 step(walk, by + 5) + step(walk, by + 6) + step(walk, by + 7))

__noinline int leaf(struct walk *walk, int by)
{
	if (!walk || !walk->left) /* without this it is refused: anybody may call it */
		return 0;
	walk->left -= 1;
	walk->sum += by;
	return 1;
}

__noinline int twig(struct walk *walk, int by)
{
	if (!walk || !walk->left)
		return 0;
	return EIGHT(leaf, walk, by);
}
// ANCHOR_END: walk

__noinline int branch(struct walk *walk, int by)
{
	if (!walk || !walk->left)
		return 0;
	return EIGHT(twig, walk, by);
}

__noinline int bough(struct walk *walk, int by)
{
	if (!walk || !walk->left)
		return 0;
	return EIGHT(branch, walk, by);
}

__noinline int trunk(struct walk *walk __arg_nonnull, int by)
{
	if (!walk->left)
		return 0;
	return EIGHT(bough, walk, by);
}

__noinline int first(__u8 *packet __arg_ctx, int place)
{
	return packet[place & 15];
}

SEC("hook/tree") int tree(__u8 *packet)
{
	struct walk walk = { .left = packet[2], .sum = 0 };
	int taken = trunk(&walk, first(packet, 0)) + EIGHT(bough, &walk, 0);

	return walk.left == 0 && taken == packet[2] ? walk.sum : -1;
}

__noinline int place_of(int number)
{
	return number & 7;
}

/* Right only if the call is followed: alone the function may return anything. */
SEC("hook/bounded") int bounded(__u8 *packet)
{
	__u32 zero = 0;
	__u64 *numbers = map_lookup(&places, &zero);

	return numbers ? (numbers[place_of(packet[0])] += 3) : -1;
}
