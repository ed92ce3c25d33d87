//go:build integration

package template

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"godwit.dev/godwit/integration/harness"
)

// maker answers the process that makes templates on the node; 0 if there is none. all has the
// processes of its namespace, itself included, and its VMM, which has a namespace of its own.
func (n *node) maker(t *testing.T) (pid int, all []int) {
	t.Helper()
	daemon := strconv.Itoa(n.Godwitd.PID())
	ns, children := map[string][]int{}, map[string][]int{}
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range dirs {
		id, err := strconv.Atoi(filepath.Base(dir))
		if err != nil {
			t.Fatal(err)
		}
		own, err := os.Readlink(filepath.Join(dir, "ns", "pid"))
		if err != nil {
			continue // gone
		}
		ns[own] = append(ns[own], id)
		status, _ := os.ReadFile(filepath.Join(dir, "status"))
		line, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
		if program, _, _ := strings.Cut(string(line), "\x00"); harness.IsVMM(program) {
			_, rest, _ := strings.Cut(string(status), "\nPPid:\t")
			parent, _, _ := strings.Cut(rest, "\n")
			children[parent] = append(children[parent], id)
		}
		if strings.Contains(string(status), "\nPPid:\t"+daemon+"\n") &&
			slices.Contains(strings.Split(string(line), "\x00"), "template") {
			pid = id
		}
	}
	own, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", pid))
	if err != nil {
		return 0, nil
	}
	return pid, append(ns[own], children[strconv.Itoa(pid)]...)
}

// making waits until the maker's VMM runs.
func (n *node) making(t *testing.T) (pid int, all []int) {
	t.Helper()
	poll(t, func() error {
		if pid, all = n.maker(t); len(all) < 2 {
			return fmt.Errorf("the maker is %d, its processes %v", pid, all)
		}
		return nil
	})
	return pid, all
}

// gone waits until none of the processes is there.
func gone(t *testing.T, pids []int) {
	t.Helper()
	poll(t, func() error {
		for _, pid := range pids {
			if syscall.Kill(pid, 0) == nil {
				return fmt.Errorf("process %d is left", pid)
			}
		}
		return nil
	})
}

// A maker that is killed, and one whose daemon is killed, leave no process and no template;
// the next one makes it.
func TestKilledMakers(t *testing.T) {
	n := newNode(t)
	n.run(t, "one", "true")
	n.is(t, "boot")
	maker, all := n.making(t)
	if err := syscall.Kill(maker, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	gone(t, all)
	again := func() {
		if err := n.Godwitd.Kill(); err != nil {
			t.Fatal(err)
		}
		if err := n.StartGodwitd(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	again() // a new daemon does not wait
	_, all = n.making(t)
	again()
	gone(t, all)
	n.made(t, 1)
	if left, _ := filepath.Glob(n.path("templates/.*")); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	n.run(t, "two", "true")
	n.is(t, "clone")
}
