package harness

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// nsGetParent is NS_GET_PARENT of ioctl_ns(2).
const nsGetParent = 0xb702

// Within tells whether a process, by its pid on the host, is in the node's pid namespace, or in one right below it. A
// VMM is in one below it, and so is the maker of templates.
func (n *Node) Within(pid int) (in, below bool) {
	own, err := os.Readlink(n.holder.proc("ns", "pid"))
	if err != nil {
		return false, false
	}
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/pid", pid))
	if err != nil {
		return false, false // gone
	}
	defer ns.Close()
	if name(int(ns.Fd())) == own {
		return true, false
	}
	parent, err := unix.IoctlRetInt(int(ns.Fd()), nsGetParent)
	if err != nil {
		return false, false // next to the caller's
	}
	defer unix.Close(parent)
	return false, name(parent) == own
}

// name of a namespace that is open.
func name(fd int) string {
	link, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil {
		return ""
	}
	return link
}

// holds tells whether a process is one of the node's own, its VMMs included.
func (n *Node) holds(pid int) bool {
	in, below := n.Within(pid)
	if !below {
		return in
	}
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	program, _, _ := strings.Cut(string(line), "\x00")
	return err == nil && IsVMM(program)
}
