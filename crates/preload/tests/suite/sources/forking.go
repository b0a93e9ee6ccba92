// Go's runtime manages memory by system calls of its own; through cgo the program forks all the same.
package main

/*
#include <sys/wait.h>
#include <unistd.h>
static int fork_and_wait(unsigned char *at) {
    int status;
    pid_t child = fork();
    if (child == 0) _exit(at[4096]);
    waitpid(child, &status, 0);
    return WEXITSTATUS(status);
}
*/
import "C"

import (
	"fmt"
	"os/exec"
	"runtime/debug"
	"unsafe"
)

func main() {
	sum := 0
	for round := 0; round < 4; round++ {
		data := make([]byte, 32<<20)
		for i, b := range data {
			if b != 0 {
				fmt.Println("not zero at", i)
				return
			}
		}
		for i := range data {
			data[i] = byte(round + 7)
		}
		fmt.Println("child", C.fork_and_wait((*C.uchar)(unsafe.Pointer(&data[0]))))
		sum += int(data[round])
		data = nil
		debug.FreeOSMemory()
	}
	out, err := exec.Command("echo", "from a child").Output()
	fmt.Println(sum, string(out), err)
}
