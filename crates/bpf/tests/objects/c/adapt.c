/* Compiled against one layout, adapted to another. */
#include "bpf.h"

#define adapts __attribute__((preserve_access_index))

struct inner {
	__u32 a;
	__u16 b[4];
} adapts;

struct request {
	__u32 id;
	struct inner in;
	__u32 small;
	unsigned int flag : 3, mode : 5;
} adapts;

struct request___old {
	__u32 gone;
} adapts;

enum verdict { PASS = 1, DROP = 2 };

SEC("hook/request") __u64 request(struct request *request)
{
	__u64 result = request->id;
	result = result * 100 + request->in.b[2];
	result = result * 100 + request->small;
	if (__builtin_preserve_field_info(((struct request___old *)request)->gone, 2))
		result += ((struct request___old *)request)->gone;
	return result;
}

SEC("hook/sizes") __u64 sizes(void *context)
{
	return __builtin_preserve_type_info(*(struct request *)0, 1) * 1000 +
	       __builtin_preserve_enum_value(*(enum verdict *)DROP, 1);
}
