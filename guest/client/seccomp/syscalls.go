package seccomp

import (
	_ "embed"
	"strconv"
	"strings"
	"sync"
)

//go:embed syscalls.txt
var syscalls string

// number of a system call on x86_64 and on i386; -1: the architecture has none.
type number [2]int

// table of all names that Linux has on any architecture.
var table = sync.OnceValue(func() map[string]number {
	t := make(map[string]number)
	for line := range strings.Lines(syscalls) {
		f := strings.Fields(line)
		var n number
		for i := range n {
			n[i] = -1
			if v, err := strconv.Atoi(f[i+1]); err == nil {
				n[i] = v
			}
		}
		t[f[0]] = n
	}
	return t
})

// i386 reaches these calls by a second way too, whose first argument says which is
// meant. A profile that forbids one forbids both ways.
var (
	bySocketcall = map[string]uint64{
		"socket": 1, "bind": 2, "connect": 3, "listen": 4, "accept": 5, "getsockname": 6, "getpeername": 7,
		"socketpair": 8, "send": 9, "recv": 10, "sendto": 11, "recvfrom": 12, "shutdown": 13, "setsockopt": 14,
		"getsockopt": 15, "sendmsg": 16, "recvmsg": 17, "accept4": 18, "recvmmsg": 19, "sendmmsg": 20,
	}
	byIPC = map[string]uint64{
		"semop": 1, "semget": 2, "semctl": 3, "semtimedop": 4, "msgsnd": 11, "msgrcv": 12, "msgget": 13,
		"msgctl": 14, "shmat": 21, "shmdt": 22, "shmget": 23, "shmctl": 24,
	}
)

// multiplexed answers the second way of a call: the multiplexer's number and the
// condition on its first argument.
func multiplexed(name string) (nr int, c condition, ok bool) {
	if n, ok := bySocketcall[name]; ok {
		return table()["socketcall"][i386], condition{op: opMasked, value: 0xffffffff, two: n}, true
	}
	if n, ok := byIPC[name]; ok { // the upper half is a version
		return table()["ipc"][i386], condition{op: opMasked, value: 0xffff, two: n}, true
	}
	return 0, condition{}, false
}
