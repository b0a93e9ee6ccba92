/* Structures in structures, unions, bit fields, enumerations and tables. */
#include "corpus.h"

enum kind { NONE, POINT, LINE, TEXT };

struct point {
	__s16 x, y;
};

struct shape {
	__u8 kind;
	__u8 flags : 3, layer : 5;
	union {
		struct point point;
		struct {
			struct point from, to;
		} line;
		struct {
			__u8 len;
			char text[7];
		} text;
	};
} __packed;

struct scene {
	struct shape shapes[8];
	struct {
		__u32 count : 4, selected : 3, dirty : 1;
		__s32 zoom : 9;
	} state;
	__u64 visits;
};

MAP(scenes, ARRAY, __u32, struct scene, 4);

static inline __u64 weight(struct shape *shape)
{
	switch (shape->kind) {
	case POINT:
		return shape->point.x * 2 + shape->point.y;
	case LINE:
		return shape->line.to.x - shape->line.from.x + shape->line.to.y - shape->line.from.y;
	case TEXT:
		if (shape->text.len < sizeof(shape->text.text))
			return shape->text.text[shape->text.len];
		return 0;
	default:
		return shape->layer;
	}
}

SEC("hook/put") __u64 put(struct ctx *ctx)
{
	__u32 key = ctx->m & 3;
	struct scene *scene = map_lookup(&scenes, &key);
	if (!scene)
		return -1;
	__u32 place = scene->state.count;
	if (place >= 8)
		return 1;
	struct shape *shape = &scene->shapes[place];
	shape->kind = ctx->data[0] & 3;
	shape->layer = ctx->data[1];
	shape->flags = ctx->data[1] >> 5;
	if (shape->kind == TEXT) {
		shape->text.len = ctx->n & 15;
		for (int at = 0; at < 7; at++)
			shape->text.text[at] = ctx->data[2 + at];
	} else {
		shape->line.from.x = ctx->i;
		shape->line.from.y = -ctx->i;
		shape->line.to.x = ctx->n;
		shape->line.to.y = 3;
	}
	scene->state.count = place + 1;
	scene->state.selected = place;
	scene->state.zoom = ctx->i;
	return scene->state.count;
}

SEC("hook/weigh") __u64 weigh(struct ctx *ctx)
{
	__u32 key = ctx->m & 3;
	struct scene *scene = map_lookup(&scenes, &key);
	if (!scene)
		return -1;
	scene->visits++;
	__u64 sum = scene->state.zoom;
	rolled for (__u32 at = 0; at < 8; at++) {
		if (at >= scene->state.count)
			break;
		sum += weight(&scene->shapes[at]);
	}
	return sum + weight(&scene->shapes[scene->state.selected]);
}

/* A copy on the stack, of which members are chosen when it runs. */
SEC("hook/copied") __u64 copied(struct ctx *ctx)
{
	struct {
		__u32 words[6];
		struct point points[4];
		union {
			__u64 whole;
			__u8 bytes[8];
			__u16 halves[4];
		} parts;
	} copy;
	__builtin_memcpy(&copy, ctx->data, sizeof(copy));
	__u32 which = ctx->m & 3, byte = ctx->data[0] & 7;
	unknown(which);
	unknown(byte);
	copy.words[scaled(ctx->n, 6)] = 7;
	copy.points[which & 3].y = ctx->i;
	/* Behind a mask compilers add it by `|`, which makes no address. */
	if (byte < 8)
		copy.parts.bytes[byte] ^= 0x55;
	return copy.words[2] + copy.points[1].y + copy.parts.whole + copy.parts.halves[2];
}

/* A machine of states by a table. */
static const __u8 table[4][4] = { { 0, 1, 2, 3 }, { 1, 1, 0, 3 }, { 2, 3, 2, 0 }, { 3, 0, 1, 2 } };

SEC("hook/machine") __u64 machine(struct ctx *ctx)
{
	__u8 state = 0;
	rolled for (int at = 0; at < 24; at++)
		state = table[state & 3][ctx->data[at] & 3];
	return state;
}

/* Many cases, dense and sparse. */
SEC("hook/cases") __u64 cases(struct ctx *ctx)
{
	__u64 result;
	switch (ctx->n) {
	case 0: result = 3; break;
	case 1: result = ctx->data[9]; break;
	case 2: result = ctx->data[ctx->data[0] & 63]; break;
	case 3: result = 77; break;
	case 4: result = ctx->m / 3; break;
	case 5: result = remainder(ctx->i, 7); break;
	case 6: result = ctx->len << 3; break;
	case 7: result = ctx->len >> (ctx->m & 7); break;
	case 100: result = 1; break;
	case 1000: result = 2; break;
	case 0x80000000: result = 4; break;
	case 0xffffffff: result = 5; break;
	default: result = 6;
	}
	return result;
}
