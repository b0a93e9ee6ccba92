/* Made by palimpsest-bpf of the types of a host. */
#ifndef PALIMPSEST_HTTP_HOOKS_H
#define PALIMPSEST_HTTP_HOOKS_H

#ifndef BPF_NO_PRESERVE_ACCESS_INDEX
#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
#endif

struct request;
struct answered;

struct request {
	unsigned long long now;
	unsigned int client;
	unsigned int length;
};
_Static_assert(sizeof(struct request) == 16, "struct request");
_Static_assert(__builtin_offsetof(struct request, now) == 0, "now of struct request");
_Static_assert(__builtin_offsetof(struct request, client) == 8, "client of struct request");
_Static_assert(__builtin_offsetof(struct request, length) == 12, "length of struct request");

struct answered {
	unsigned long long nanoseconds;
	unsigned int client;
	unsigned int status;
};
_Static_assert(sizeof(struct answered) == 16, "struct answered");
_Static_assert(__builtin_offsetof(struct answered, nanoseconds) == 0, "nanoseconds of struct answered");
_Static_assert(__builtin_offsetof(struct answered, client) == 8, "client of struct answered");
_Static_assert(__builtin_offsetof(struct answered, status) == 12, "status of struct answered");

#ifndef BPF_NO_PRESERVE_ACCESS_INDEX
#pragma clang attribute pop
#endif

#endif
