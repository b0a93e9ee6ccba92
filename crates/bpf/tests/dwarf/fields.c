/* Types in C, all of whose forms a program asks for. Compiled as a library it is the host; compiled for eBPF it is a
 * program, whose BTF is what the library's debug information has to say as well. */
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#ifdef HOST
#define adapts
#else
#define adapts __attribute__((preserve_access_index))
#endif

enum kind { NONE, FEW = 40, LOW = -5 };
enum wide { SMALL = 1, HUGE = 0x7fffffffffLL };

typedef struct {
	u32 a;
	u16 grid[3][4];
} inner_t;

struct host {
#ifdef HOST
	u64 moved[3];
#endif
	volatile u32 id;
	const inner_t *pointer;
	inner_t in[2];
	union {
		struct {
			u32 first, second;
		};
		u64 both;
	};
	u32 flag : 3, mode : 5, signed_too : 11;
	int small : 4;
	u64 far : 40;
	_Bool truth : 1;
	enum kind kind;
	enum wide wide;
	float weight;
	_Bool is_last;
	char rest[];
} adapts;

#ifdef HOST
struct host host;
inner_t inner;
#else
#define SEC(name) __attribute__((section(name), used))
#define field(number, what) ((u64)__builtin_preserve_field_info(host->what, number))
#define bits(what) field(0, what), field(1, what), field(3, what), field(4, what), field(5, what)

char LICENSE[] SEC("license") = "";

SEC("hook/host") u64 fields(struct host *host)
{
	u64 all[] = { bits(flag), bits(mode), bits(signed_too), bits(small), bits(far), bits(truth),
		      field(0, in[1].grid[2][3]), field(0, first), field(0, second), field(0, both), field(1, in),
		      field(0, pointer), field(0, kind), field(1, wide), field(0, weight),
		      field(0, is_last), field(0, rest), field(2, rest), host->id,
		      __builtin_preserve_type_info(*(inner_t *)0, 1), __builtin_preserve_type_info(*(inner_t *)0, 0),
		      __builtin_preserve_type_info(*host, 1), __builtin_preserve_enum_value(*(enum kind *)FEW, 1) };
	u64 sum = 0;

#pragma unroll
	for (int place = 0; place < sizeof(all) / sizeof(all[0]); place++)
		sum = sum * 31 + all[place];
	return sum;
}
#endif
