/* Texts: found, compared, copied, converted, as far as the room goes. */
#include "corpus.h"

/* How long a text is. */
SEC("hook/length") __u64 length(struct ctx *ctx)
{
	__u32 at;
	rolled for (at = 0; at < ROOM; at++)
		if (!ctx->data[at])
			break;
	return at;
}

/* Where one text begins in another. */
SEC("hook/find") __u64 find(struct ctx *ctx)
{
	int at;
	rolled for (at = 0; at <= ROOM - 4; at++) {
		const __u8 *here = &ctx->data[at];
		if (here[0] == 'G' && here[1] == 'E' && here[2] == 'T' && here[3] == ' ')
			return at;
	}
	return -1;
}

/* The path of a request, as far as it fits. */
SEC("hook/path") __u64 path(struct ctx *ctx)
{
	char path[13] = {};
	int len = 0;
	rolled for (int at = 0; at < 12; at++) {
		char here = ctx->data[at];
		if (!here || here == '?' || here == ' ')
			break;
		path[len++] = here;
	}
	__u64 hash = len;
	rolled for (int at = 0; at < 12; at++) {
		if (at >= len)
			break;
		hash = hash * 31 + path[at];
	}
	return hash;
}

/* Without its escapes, by two indices. */
static inline int digit(__u8 letter)
{
	if (letter >= '0' && letter <= '9')
		return letter - '0';
	letter |= 0x20;
	return letter >= 'a' && letter <= 'f' ? letter - 'a' + 10 : -1;
}

SEC("hook/unescape") __u64 unescape(struct ctx *ctx)
{
	__u8 plain[16] = {};
	__u32 from = 0, to = 0;
	rolled for (int count = 0; count < 12; count++) {
		__u8 letter = ctx->data[from++];
		if (!letter)
			break;
		if (letter == '%') {
			int high = digit(ctx->data[from]), low = digit(ctx->data[from + 1]);
			if (high < 0 || low < 0)
				return -1;
			letter = high << 4 | low;
			from += 2;
		}
		plain[to++ & 15] = letter;
	}
	__u64 sum = to;
	for (int at = 0; at < 16; at++)
		sum = sum * 7 + plain[at];
	return sum;
}

/* Backwards, in place. */
SEC("hook/reverse") __u64 reverse(struct ctx *ctx)
{
	__u8 text[24];
	__builtin_memcpy(text, ctx->data, sizeof(text));
	__u32 len = ctx->n;
	if (len == 0 || len > sizeof(text))
		return 0;
	__u32 first = 0, last = len - 1;
	rolled for (int count = 0; count < 12; count++) {
		if (first >= last || last >= sizeof(text))
			break;
		__u8 letter = text[first];
		text[first++] = text[last];
		text[last--] = letter;
	}
	__u64 sum = 0;
	for (int at = 0; at < 24; at++)
		sum = sum * 5 + text[at];
	return sum;
}

/* A number, with its sign. */
SEC("hook/number") __u64 number(struct ctx *ctx)
{
	long value = 0;
	int at = 0, sign = 1;
	if (ctx->data[0] == '-') {
		sign = -1;
		at = 1;
	}
	rolled for (int digits = 0; digits < 9; digits++) {
		__u8 letter = ctx->data[at + digits];
		if (letter < '0' || letter > '9')
			break;
		value = value * 10 + (letter - '0');
	}
	return sign * value;
}

/* By a helper, which gets as many bytes as there are. */
SEC("hook/convert") __u64 convert(struct ctx *ctx)
{
	char text[16] = {};
	__u32 len = ctx->n;
	__s64 value = 0;
	if (len == 0 || len > sizeof(text))
		return 0;
	rolled for (__u32 at = 0; at < len; at++) {
		char letter = ctx->data[at];
		text[at] = letter ? letter : ' ';
	}
	long used = text_to_number(text, len, 10, &value);
	return used < 0 ? used : value;
}

/* The beginning is one of those known; a helper compares the rest. */
static const char known[4][8] = { "get", "put", "post", "delete" };

SEC("hook/method") __u64 method(struct ctx *ctx)
{
	rolled for (__u32 which = 0; which < 4; which++) {
		__u32 at;
		rolled for (at = 0; at < 8; at++) {
			char letter = known[which][at];
			if (!letter || letter != ctx->data[at])
				break;
		}
		if (at < 8 && !known[which][at])
			return which;
	}
	char word[8] = {};
	__builtin_memcpy(word, &ctx->data[8], 7);
	return compare_text(word, sizeof(word), known[0]) == 0 ? 10 : 11;
}
