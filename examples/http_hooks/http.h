/* What the programs use: the hooks' contexts, and of Linux's maps and helpers those that they need. */
typedef unsigned int __u32;
typedef unsigned long long __u64;

#define SEC(name) __attribute__((section(name), used))
#define __uint(name, val) int(*name)[val]
#define __type(name, val) typeof(val) *name

enum { ARRAY = 2, LRU_HASH = 9 };

static void *(*map_lookup)(void *map, const void *key) = (void *)1;
static long (*map_update)(void *map, const void *key, const void *value, __u64 flags) = (void *)2;

/* http.request gets a struct request before a request is answered; a result other than 0 refuses it. http.answered gets
   a struct answered after the answer. The host writes this header: http_hooks --header. */
#include "hooks.h"
