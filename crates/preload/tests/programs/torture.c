// An allocator under load: checks every block for the bytes it was given, and calloc's for zeros, in parents and
// children, before and after forks. Prints what must not depend on a freeze; lines with # may.
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BLOCKS = 6000 };

static unsigned char *blocks[BLOCKS];
static size_t sizes[BLOCKS];
static unsigned char marks[BLOCKS];
static uint64_t state = 88172645463325252u;
static unsigned long sum;

static uint64_t dice(void) {
	state ^= state << 13;
	state ^= state >> 7;
	return state ^= state << 17;
}

static void fail(const char *what, int block, size_t at) {
	fprintf(stderr, "process %d: %s, block %d, byte %zu of %zu\n", getpid(), what, block, at, sizes[block]);
	_exit(99);
}

static size_t any_size(void) {
	switch (dice() % 8) {
	case 0: return 4096 + dice() % 60000;
	case 1: return dice() % 64 ? 70000 : 300000 + dice() % 3000000;
	default: return 1 + dice() % 2000;
	}
}

static void check(int block) {
	for (size_t at = 0; at < sizes[block]; at++)
		if (blocks[block][at] != marks[block]) fail("a block has lost its bytes", block, at);
	sum += sizes[block] * marks[block];
}

static void set(int block, unsigned char *memory, size_t size) {
	blocks[block] = memory;
	sizes[block] = size;
	marks[block] = (unsigned char)(1 + dice() % 255);
	memset(memory, marks[block], size);
}

static void step(void) {
	int block = (int)(dice() % BLOCKS);
	size_t size = any_size();
	check(block);
	switch (dice() % 4) {
	case 0:
		free(blocks[block]);
		blocks[block] = NULL;
		sizes[block] = 0;
		break;
	case 1: {
		size_t old = sizes[block];
		unsigned char *memory = realloc(blocks[block], size);
		if (!memory) abort();
		blocks[block] = memory;
		sizes[block] = old < size ? old : size;
		check(block);
		set(block, memory, size);
		break;
	}
	default: {
		free(blocks[block]);
		unsigned char *memory = calloc(1, size);
		if (!memory) abort();
		sizes[block] = size;
		for (size_t at = 0; at < size; at++)
			if (memory[at]) fail("calloc returns old bytes", block, at);
		set(block, memory, size);
	}
	}
}

static void work(int steps) {
	while (steps--) step();
}

static void all(void) {
	for (int block = 0; block < BLOCKS; block++) check(block);
}

static void pte(void) {
	char line[200];
	FILE *status = fopen("/proc/self/status", "r");
	while (status && fgets(line, sizeof line, status))
		if (!strncmp(line, "VmPTE:", 6)) dprintf(1, "#pte %ld\n", strtol(line + 6, NULL, 10));
	if (status) fclose(status);
}

static int ended(pid_t pid) {
	int status = 0;
	if (waitpid(pid, &status, 0) != pid) abort();
	return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + status;
}

int main(void) {
	work(40000);
	for (int turn = 0; turn < 6; turn++) {
		pid_t pid = fork();
		if (pid == 0) {
			if (turn == 0) pte();
			all();
			work(4000);
			all();
			pid_t inner = fork();
			if (inner == 0) {
				work(2000);
				all();
				_exit((int)(sum % 90));
			}
			work(1000);
			int code = ended(inner);
			all();
			dprintf(1, "child %d %lu %d\n", turn, sum, code);
			_exit((int)(sum % 90));
		}
		work(8000);
		dprintf(1, "parent %d %lu %d\n", turn, sum, ended(pid));
		if (turn == 3) {
			// Gives everything back, and takes it again.
			for (int block = 0; block < BLOCKS; block++) {
				free(blocks[block]);
				blocks[block] = NULL;
				sizes[block] = 0;
			}
			work(20000);
		}
	}
	all();
	dprintf(1, "end %lu\n", sum);
	return 0;
}
