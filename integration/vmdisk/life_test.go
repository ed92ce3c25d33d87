//go:build integration

package vmdisk

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/integration/images"
	"godwit.dev/godwit/vmm/cloudhypervisor"
)

// TestVMDisks shows VM disks on one site: every check shares its images, and most of them
// one VM, because a boot through firmware takes its time without KVM.
func TestVMDisks(t *testing.T) {
	s := newSite(t, func(file string) error { return writeDisks(t, file) })
	for _, n := range s.h.Nodes() {
		n.CheckClean(t)
	}
	t.Run("refused", s.refused)
	t.Run("firmware", s.firmware)
	t.Run("kernel", s.kernel)
	if harness.KVM() { // without it the life by firmware is long enough
		t.Run("life", s.life)
		t.Run("lazy", s.lazy)
	}
	t.Run("network", s.network)
	t.Run("bios", s.bios)
}

// firmware lives by UEFI, from a compressed qcow2.
func (s *site) firmware(t *testing.T) { s.lives(t, "uefi", "uefi", images.QcowDisk) }

// life is by a kernel of the image.
func (s *site) life(t *testing.T) {
	s.lives(t, "life", "none", append(byKernel(form()), images.KernelDisk)...)
}

// lives is the life of a VM disk: its console, what a user asks for while it runs, and a reboot
// by itself. Then follow sleep, wake on another node, another reboot there, and the power
// button.
func (s *site) lives(t *testing.T, vm, firmware string, args ...string) {
	c := run(t, s.a, append(append([]string{"--annotation", "godwit.dev/memory=256MiB", "--annotation",
		"godwit.dev/vcpus=2",
		"--annotation", "godwit.dev/disk-size=100MiB"}, args...), vm)...)
	first := c.state()
	first.want(t, state{"firmware": firmware, "boots": "1", "cpus": "2", "sectors": strconv.Itoa(100 << 11)})
	if mem, _ := strconv.Atoi(first["mem"]); mem < 190<<10 || mem > 256<<10 {
		t.Errorf("the guest has %d KiB of RAM", mem)
	}
	c.types("cat /proc/loadavg")
	s.calls(t, vm)

	c.sends("umount /mnt; reboot -f")
	wait(t, "the second boot", func() error {
		if strings.Contains(c.out.String(), "boots=2 ") {
			return nil
		}
		return fmt.Errorf("console says %q", tail(c.out.String()))
	})
	again := c.state()
	again.want(t, state{"firmware": firmware, "boots": "2", "cpus": "2"})
	if again["nonce"] == first["nonce"] {
		t.Error("the guest says that it was not booted again")
	}

	// It will reset itself some time after it has woken up.
	c.types("reset-at 12")
	s.a.Godwit(t, "hibernate", vm)
	if code := c.ended(); code != 0 {
		t.Errorf("ctr ended with %d: %s", code, c.errs)
	}
	all := states(c.out.String())
	asleep := all[len(all)-1]
	if leaked, err := filepath.Glob(filepath.Join(s.a.Dir, "ram", "[^.]*")); err != nil || len(leaked) > 0 {
		t.Errorf("RAM is left: %v, %v", leaked, err)
	}
	s.b.Godwit(t, "wake", "--on", s.b.Name, vm)
	log := s.log(s.b, vm)
	woken := awaitTick(t, log, func(state) bool { return true })
	// RAM and disk are those of one moment: the marker of the second boot in both, the
	// counter goes on, and the clock that has a battery has not stood still.
	woken.want(t, state{"nonce": again["nonce"], "disk": again["nonce"], "boots": "2", "firmware": firmware})
	if was, is := number(t, asleep["tick"]), number(t, woken["tick"]); is <= was || is > was+5 {
		t.Errorf("the counter went from %d to %d", was, is)
	}
	if harness.VMM() == cloudhypervisor.Name && asleep["rtc"] == "" {
		t.Log("Linux finds no clock with a battery on Cloud Hypervisor")
	} else if was, is := number(t, asleep["rtc"]), number(t, woken["rtc"]); is < was {
		t.Errorf("the clock went from %d to %d", was, is)
	}
	third := awaitTick(t, log, func(s state) bool { return s["boots"] == "3" })
	if third["nonce"] == woken["nonce"] || third["firmware"] != firmware {
		t.Errorf("after the reset of a woken VM: %v", third)
	}
	s.powerOff(t, s.b, vm, log)
	s.remove(t, vm, s.a, s.b)
}

// calls are those of a task, on one that runs.
func (s *site) calls(t *testing.T, vm string) {
	if out, err := s.a.RunCtr(t.Context(), "task", "exec", "--exec-id", "e", vm, "true"); err == nil ||
		!strings.Contains(err.Error()+out, "no agent") {
		t.Errorf("exec: %q, %v", out, err)
	}
	if out := s.a.Ctr(t, "task", "ls"); !strings.Contains(out, "RUNNING") {
		t.Errorf("tasks: %s", out)
	}
	if out := s.a.Ctr(t, "task", "ps", vm); len(strings.Split(strings.TrimSpace(out), "\n")) != 2 {
		t.Errorf("processes: %s", out)
	}
	if out := s.a.Ctr(t, "task", "metrics", "--format", "json", vm); !strings.Contains(out, "usage") {
		t.Errorf("metrics: %s", out)
	}
	s.a.Ctr(t, "task", "pause", vm)
	if out := s.a.Ctr(t, "task", "ls"); !strings.Contains(out, "PAUSED") {
		t.Errorf("tasks: %s", out)
	}
	s.a.Ctr(t, "task", "resume", vm)
	// What ends no process presses no button.
	s.a.Ctr(t, "task", "kill", "-s", "SIGWINCH", vm)
}

// powerOff presses the button, which this guest heeds.
func (s *site) powerOff(t *testing.T, n *harness.Node, vm string, console func() string) {
	n.Ctr(t, "task", "kill", "-s", "SIGTERM", vm)
	wait(t, "the end of the task", func() error {
		out, err := n.RunCtr(t.Context(), "task", "ls")
		if err == nil && strings.Contains(out, "STOPPED") {
			return nil
		}
		return fmt.Errorf("%s, %v; the console says %q", out, err, tail(console()))
	})
	if !strings.Contains(console(), "system: power button") {
		t.Errorf("the console says %q", tail(console()))
	}
	// ctr warns of a status that is not 0, and exits with 0.
	out, err := n.Run(t.Context(), "sh", append([]string{"-c", `exec "$@" 2>&1`, "sh", "ctr"},
		n.CtrArgs("task", "delete", vm)...)...)
	if err != nil || strings.Contains(out, "exit code") {
		t.Errorf("exit status: %s, %v", out, err)
	}
}

// kernel boots the same disk with the kernel that is in the image too. A second task of the
// container finds the first one's writes. A SIGKILL ends the first, the guest itself the second.
func (s *site) kernel(t *testing.T) {
	const vm = "kernel"
	c := run(t, s.a, append(byKernel(form()), "--annotation", "godwit.dev/memory=256MiB", images.KernelDisk, vm)...)
	c.state().want(t, state{"firmware": "none", "boots": "1", "cmdline": strings.ReplaceAll(cmdline(), " ", ",")})
	s.a.Ctr(t, "task", "kill", "-s", "SIGKILL", vm)
	if code := c.ended(); code != 137 {
		t.Errorf("ctr ended with %d", code)
	}
	s.endsInMoves(t, vm)
	s.remove(t, vm, s.a, s.b)
}

// bios boots a disk that only a BIOS can start.
func (s *site) bios(t *testing.T) {
	const vm = "bios"
	c := run(t, s.a, "--annotation", "godwit.dev/memory=64MiB", "--annotation", "godwit.dev/firmware=bios",
		images.BIOSDisk, vm)
	c.says(images.BIOSGreeting + "\n")
	s.a.Ctr(t, "task", "kill", "-s", "SIGKILL", vm)
	if code := c.ended(); code != 137 {
		t.Errorf("ctr ended with %d", code)
	}
	s.remove(t, vm, s.a)
}

// remove forgets a VM as a user does.
func (s *site) remove(t *testing.T, vm string, nodes ...*harness.Node) {
	for _, n := range nodes {
		if out, err := n.RunCtr(t.Context(), "container", "rm", vm); err != nil {
			t.Errorf("%s: %v", out, err)
		}
	}
	s.a.Godwit(t, "rm", vm)
}

func awaitTick(t *testing.T, text func() string, ok func(state) bool) (found state) {
	t.Helper()
	wait(t, "a tick", func() error {
		for _, s := range states(text()) {
			if ok(s) {
				found = s
				return nil
			}
		}
		return fmt.Errorf("the console says %q", tail(text()))
	})
	return found
}

func (s state) want(t *testing.T, want state) {
	t.Helper()
	for name, value := range want {
		if s[name] != value {
			t.Errorf("the guest's %s is %q, want %q", name, s[name], value)
		}
	}
}

func number(t *testing.T, text string) int {
	t.Helper()
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
