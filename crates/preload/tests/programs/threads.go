// Go's runtime has threads and manages its memory by system calls of its own: a freeze must be refused or right.
package main

/*
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static char *big;

// Forks as a C library inside a Go program could; the child may do no more than this.
static int fork_and_look(void) {
	if (!big) {
		big = malloc(8 << 20);
		memset(big, 7, 8 << 20);
	}
	pid_t pid = fork();
	if (pid == 0) {
		for (int i = 0; i < 8 << 20; i++)
			if (big[i] != 7) _exit(1);
		_exit(9);
	}
	int status = 0;
	waitpid(pid, &status, 0);
	return WEXITSTATUS(status);
}
*/
import "C"

import (
	"fmt"
	"hash/crc32"
	"os/exec"
	"runtime"
	"runtime/debug"
)

func main() {
	heap := make([][]byte, 0)
	sum := func() uint32 {
		crc := uint32(0)
		for _, part := range heap {
			crc = crc32.Update(crc, crc32.IEEETable, part)
		}
		return crc
	}
	for turn := 0; turn < 5; turn++ {
		for part := 0; part < 200; part++ {
			bytes := make([]byte, 64<<10)
			for at := range bytes {
				if bytes[at] != 0 {
					fmt.Println("old bytes in new memory")
				}
				bytes[at] = byte(at * (turn + part + 1))
			}
			heap = append(heap, bytes)
		}
		fmt.Println("sum", sum(), "child", C.fork_and_look())
		heap = heap[150:]
		runtime.GC()
		debug.FreeOSMemory()
		output, err := exec.Command("/bin/echo", "executed").Output()
		fmt.Print(string(output), err, "\n")
	}
	fmt.Println("sum", sum())
}
