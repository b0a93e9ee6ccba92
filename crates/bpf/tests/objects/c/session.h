/* Made by palimpsest-bpf of the types of a host. */
#ifndef PALIMPSEST_SESSION_H
#define PALIMPSEST_SESSION_H

#ifndef BPF_NO_PRESERVE_ACCESS_INDEX
#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
#endif

struct session;
struct Limits;
struct Packed;

struct Limits {
	unsigned int burst;
	unsigned int rates[3];
	unsigned long long bytes;
};
_Static_assert(sizeof(struct Limits) == 24, "struct Limits");
_Static_assert(__builtin_offsetof(struct Limits, burst) == 0, "burst of struct Limits");
_Static_assert(__builtin_offsetof(struct Limits, rates) == 4, "rates of struct Limits");
_Static_assert(__builtin_offsetof(struct Limits, bytes) == 16, "bytes of struct Limits");

struct Packed {
	unsigned short near;
	unsigned int far;
} __attribute__((packed, aligned(2)));
_Static_assert(sizeof(struct Packed) == 6, "struct Packed");
_Static_assert(__builtin_offsetof(struct Packed, near) == 0, "near of struct Packed");
_Static_assert(__builtin_offsetof(struct Packed, far) == 2, "far of struct Packed");

struct session {
	struct Limits limits;
	unsigned char is_secure;
	unsigned char room[3];
	unsigned int id;
	unsigned int port;
	signed char type;
	unsigned char more_room[3];
	unsigned long long next;
	struct Packed packed;
	unsigned char end[2];
	long long offset;
} __attribute__((aligned(16)));
_Static_assert(sizeof(struct session) == 64, "struct session");
_Static_assert(__builtin_offsetof(struct session, limits) == 0, "limits of struct session");
_Static_assert(__builtin_offsetof(struct session, is_secure) == 24, "is_secure of struct session");
_Static_assert(__builtin_offsetof(struct session, room) == 25, "room of struct session");
_Static_assert(__builtin_offsetof(struct session, id) == 28, "id of struct session");
_Static_assert(__builtin_offsetof(struct session, port) == 32, "port of struct session");
_Static_assert(__builtin_offsetof(struct session, type) == 36, "type of struct session");
_Static_assert(__builtin_offsetof(struct session, more_room) == 37, "more_room of struct session");
_Static_assert(__builtin_offsetof(struct session, next) == 40, "next of struct session");
_Static_assert(__builtin_offsetof(struct session, packed) == 48, "packed of struct session");
_Static_assert(__builtin_offsetof(struct session, end) == 54, "end of struct session");
_Static_assert(__builtin_offsetof(struct session, offset) == 56, "offset of struct session");

#ifndef BPF_NO_PRESERVE_ACCESS_INDEX
#pragma clang attribute pop
#endif

#endif
