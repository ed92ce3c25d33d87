package agentd

import (
	"bytes"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// After so many reads of a terminal its workers are looked for, and again after each lot of reads.
// A read answers at most 4 KiB. A terminal that a person types on does not get there soon.
const (
	workersFirst = 16
	workersAgain = 512
)

// unboundWorker is what the name of a kernel thread that brings output to terminals begins with.
const unboundWorker = "kworker/u"

// easeWorkers makes the kernel's workers wait for their turn. A worker brings what a process writes
// on a terminal to the reader. On a guest with one processor it interrupts the process at each
// line, which costs far more than the line. With SCHED_BATCH a worker does not interrupt: it runs
// once the process waits or its time is up (sched(7)). Its share of the processor stays the same.
//
// The kernel makes and ends workers as it likes. What fails here costs speed only.
func easeWorkers(proc string) {
	// 2 is kthreadd, the parent of all threads of the kernel.
	threads, err := os.ReadFile(proc + "/2/task/2/children")
	if err != nil {
		return
	}
	for _, pid := range bytes.Fields(threads) {
		name, err := os.ReadFile(fmt.Sprintf("%s/%s/comm", proc, pid))
		if err != nil || !bytes.HasPrefix(name, []byte(unboundWorker)) {
			continue
		}
		var id int
		if _, err := fmt.Sscan(string(pid), &id); err == nil {
			setBatch(id)
		}
	}
}

// setBatch changes a thread of the normal policy, and no other: sched_setscheduler(2).
func setBatch(pid int) {
	policy, _, errno := unix.Syscall(unix.SYS_SCHED_GETSCHEDULER, uintptr(pid), 0, 0)
	if errno != 0 || policy != unix.SCHED_NORMAL {
		return
	}
	var priority int32 // struct sched_param; 0 is the only value of this policy
	_, _, _ = unix.Syscall(unix.SYS_SCHED_SETSCHEDULER, uintptr(pid), unix.SCHED_BATCH,
		uintptr(unsafe.Pointer(&priority)))
}
