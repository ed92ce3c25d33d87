//go:build integration && upgrade

package install

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/integration/images"
)

// unpack lays the package out as Options.Programs of the harness wants it.
func unpack(t *testing.T, deb string) string {
	t.Helper()
	dir := t.TempDir()
	command(t, "", "dpkg-deb", "--extract", deb, dir)
	to := filepath.Join(dir, "usr", "bin")
	if err := os.Rename(filepath.Join(dir, "usr", "share", "godwit"), filepath.Join(to, "guest")); err != nil {
		t.Fatal(err)
	}
	return to
}

// put installs the programs and the guest of from as a package manager does: each file
// is there, whole, under its name, and what ran before runs on.
func put(t *testing.T, from, to string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(to, "guest"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range append([]string{"guest/vmlinuz", "guest/initramfs"}, programs...) {
		data, err := os.ReadFile(filepath.Join(from, name))
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(to, name)
		if err := os.WriteFile(path+".new", data, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
}

// TestUpgrade takes a node from the release before to the package that was just built,
// under VMs that run and one that sleeps. GODWIT_UPGRADE_FROM has the older programs;
// tools/upgrade.sh makes them.
func TestUpgrade(t *testing.T) {
	from := os.Getenv("GODWIT_UPGRADE_FROM")
	if from == "" {
		t.Fatal("GODWIT_UPGRADE_FROM names no programs of the release before (make upgrade)")
	}
	_, deb := built(t)
	next, bin := unpack(t, deb), filepath.Join(t.TempDir(), "bin")
	put(t, from, bin)
	h := harness.New(t, harness.Options{Registry: harness.PlainHTTP, Godwitd: true, Images: true, Programs: bin})
	n := h.Node(0)
	n.CheckClean(t)
	was := strings.Split(n.Godwit(t, "version"), "\n")[0]

	var started sync.WaitGroup
	for _, vm := range []string{"dies", "ends"} {
		started.Go(func() { run(t, n, vm) })
	}
	for _, vm := range []string{"sleeps", "moves"} { // those that sleep have their network freed by godwitd
		started.Go(func() { run(t, n, vm, "--cni") })
	}
	started.Wait()
	if t.Failed() {
		return
	}
	sleeps, moves := mark(t, n, "sleeps"), mark(t, n, "moves")
	n.Godwit(t, "hibernate", "sleeps")

	put(t, next, bin)
	if is := strings.Split(n.Godwit(t, "version"), "\n")[0]; is == was {
		t.Fatalf("both releases are %s", is)
	}
	if err := n.Godwitd.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := n.StartGodwitd(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, part := range []struct {
		name string
		test func(*testing.T)
	}{
		{"the new daemon reads the records and asks the old shims", func(t *testing.T) { listed(t, n) }},
		{"an old shim goes on under its containerd", func(t *testing.T) { same(t, n, "moves", moves, true) }},
		{"an old shim obeys the new daemon and its VM wakes in a new one", func(t *testing.T) {
			n.Godwit(t, "hibernate", "moves")
			n.Godwit(t, "wake", "moves")
			same(t, n, "moves", moves, false)
		}},
		{"a snapshot of the release before wakes", func(t *testing.T) {
			n.Godwit(t, "wake", "sleeps")
			same(t, n, "sleeps", sleeps, false)
		}},
		{"what woke sleeps and wakes again", func(t *testing.T) {
			n.Godwit(t, "hibernate", "sleeps")
			n.Godwit(t, "wake", "sleeps")
			same(t, n, "sleeps", sleeps, false)
		}},
		{"a killed old shim is cleaned up after by the new delete", func(t *testing.T) { dies(t, n) }},
		{"a new VM beside them runs from the package", func(t *testing.T) {
			out := n.Ctr(t, "run", "--rm", "--runtime", "io.containerd.godwit.v1", images.Busybox, "new", "echo", "hello")
			if out != "hello\n" {
				t.Errorf("it says %q", out)
			}
		}},
		{"all of them are deleted", func(t *testing.T) {
			for _, vm := range []string{"ends", "moves", "sleeps"} {
				n.Ctr(t, "task", "rm", "--force", vm)
				n.Ctr(t, "container", "rm", vm)
			}
		}},
	} {
		t.Run(part.name, part.test)
	}
}

func run(t *testing.T, n *harness.Node, vm string, flags ...string) {
	args := append([]string{"run", "-d", "--runtime", "io.containerd.godwit.v1"}, flags...)
	if _, err := n.RunCtr(t.Context(), append(args, images.Busybox, vm, "sleep", "1000000")...); err != nil {
		t.Error(err)
	}
}

// execs has a number for every exec: ids are used once.
var execs int

func inVM(t *testing.T, n *harness.Node, vm, script string) string {
	t.Helper()
	execs++
	return n.Ctr(t, "task", "exec", "--exec-id", fmt.Sprintf("e%d", execs), vm, "sh", "-c", script)
}

// look is what only this boot of this VM can say: its boot, and a secret in its memory.
const look = "cat /proc/sys/kernel/random/boot_id /dev/shm/mark"

func mark(t *testing.T, n *harness.Node, vm string) string {
	t.Helper()
	return inVM(t, n, vm, "cat /proc/sys/kernel/random/uuid >/dev/shm/mark; "+look)
}

// same checks that the VM is the one that was marked, and whose shim it has.
func same(t *testing.T, n *harness.Node, vm, marked string, old bool) {
	t.Helper()
	if got := inVM(t, n, vm, look); got != marked || len(strings.Fields(got)) != 2 {
		t.Errorf("VM %s is another one: %q, was %q", vm, got, marked)
	}
	if _, program := shimOf(t, n, vm); strings.HasSuffix(program, " (deleted)") != old {
		t.Errorf("VM %s has the shim %s", vm, program)
	}
}

// shimOf finds the shim that serves a VM, and the file that it runs.
func shimOf(t *testing.T, n *harness.Node, vm string) (pid, program string) {
	t.Helper()
	out, err := n.Run(t.Context(), "sh", "-c", `for p in /proc/[0-9]*; do
		case " $(tr '\0' ' ' <$p/cmdline 2>/dev/null)" in
		*containerd-shim-godwit-v1\ -namespace\ default\ -id\ `+vm+`\ *) echo "${p#/proc/}" "$(readlink $p/exe)" ;;
		esac
	done`)
	if err != nil {
		t.Fatal(err)
	}
	pid, program, _ = strings.Cut(strings.TrimSpace(out), " ")
	if pid == "" || strings.Contains(program, "\n") {
		t.Fatalf("shims of VM %s: %q", vm, out)
	}
	return pid, program
}

// listed checks what the new command line says of the old VMs.
func listed(t *testing.T, n *harness.Node) {
	var list struct {
		VMs []struct {
			VM     struct{ ID string }
			Status string
		}
	}
	if err := json.Unmarshal([]byte(n.Godwit(t, "ps", "-A", "-o", "json")), &list); err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, v := range list.VMs {
		got[v.VM.ID] = strings.ToLower(v.Status)
	}
	for vm, want := range map[string]string{"moves": "running", "dies": "running", "ends": "running",
		"sleeps": "hibernated"} {
		if got[vm] != want {
			t.Errorf("VM %s is %q, want %s; all: %v", vm, got[vm], want, got)
		}
	}
}

// dies kills an old shim; containerd then calls the delete of the program that lies there
// now, on a journal of the old one.
func dies(t *testing.T, n *harness.Node) {
	pid, program := shimOf(t, n, "dies")
	if !strings.HasSuffix(program, " (deleted)") {
		t.Fatalf("the shim runs %s", program)
	}
	if _, err := n.Run(t.Context(), "sh", "-c", "kill -9 "+pid); err != nil {
		t.Fatal(err)
	}
	err := harness.Poll(t.Context(), time.Minute, func(context.Context) error {
		_, err := os.Stat(filepath.Join(n.Dir, "lib/vms/default/dies/node.json"))
		if err == nil {
			return errors.New("its journal is there")
		}
		return nil
	})
	if err != nil {
		t.Errorf("the shim was killed: %v", err)
	}
	_, _ = n.RunCtr(t.Context(), "task", "rm", "dies") // where containerd has kept the stopped task
	n.Ctr(t, "container", "rm", "dies")
}
