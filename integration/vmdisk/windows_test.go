//go:build integration && kvmhost

package vmdisk

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/integration/images"
)

// windowsStep bounds what Windows may take for a boot, or for its end.
var windowsStep = harness.Slow(20 * time.Minute)

// TestWindows runs the Windows on the disk that GODWIT_WINDOWS_IMAGE
// names. It has virtio drivers and takes its address by DHCP; nothing else of it is known,
// so it is looked at from outside: by its leases, and by the metrics of its wakes.
func TestWindows(t *testing.T) {
	disk := os.Getenv("GODWIT_WINDOWS_IMAGE")
	if disk == "" {
		t.Fatal("GODWIT_WINDOWS_IMAGE names no disk with Windows")
	}
	const image, vm = "godwit.test/windows:1", "windows"
	s := newSite(t, func(file string) error { return images.WriteDisk(image, disk, file) })
	run(t, s.a, "--cni", "--annotation", "godwit.dev/os=windows", "--annotation", "godwit.dev/memory=3GiB", "--annotation",
		"godwit.dev/vcpus=2",
		"--mount", "type=bind,src=/etc/resolv.conf,dst=/etc/resolv.conf,options=rbind:ro", image, vm)
	address := s.awaitLeases(t, s.a, vm, 1)
	for round, n := range []*harness.Node{s.b, s.a} {
		from := map[*harness.Node]*harness.Node{s.a: s.b, s.b: s.a}[n]
		leases := len(s.leases(t, n, vm))
		from.Godwit(t, "hibernate", vm)
		n.Godwit(t, "wake", "--on", n.Name, vm)
		if got := s.awaitLeases(t, n, vm, leases+1); got != address {
			t.Errorf("wake %d: it has %s, had %s", round+1, got, address)
		}
		n.WantMetrics(t, map[string]float64{`godwit_wake_address_seconds_count{result="ok"}`: 1,
			`godwit_wake_address_seconds_count{result="timeout"}`: 0})
	}
	s.a.Ctr(t, "task", "kill", "-s", "SIGTERM", vm)
	s.within(t, "the end of Windows", func() error {
		out, err := s.a.RunCtr(t.Context(), "task", "ls")
		if err != nil || !regexp.MustCompile(`(?m)^`+vm+` .*STOPPED`).MatchString(out) {
			return fmt.Errorf("%s, %w", out, err)
		}
		return nil
	})
	if out, err := s.a.RunCtr(t.Context(), "task", "delete", vm); err != nil {
		t.Errorf("exit status: %s, %v", out, err)
	}
	s.remove(t, vm, s.a, s.b)
}

func (s *site) within(t *testing.T, what string, ok func() error) {
	t.Helper()
	if err := harness.Poll(t.Context(), windowsStep, func(context.Context) error { return ok() }); err != nil {
		t.Fatalf("wait for %s: %v", what, err)
	}
}

// leases are the addresses that the VM was given on a node, as the shims' logs tell.
func (s *site) leases(t *testing.T, n *harness.Node, vm string) (all []string) {
	t.Helper()
	line := regexp.MustCompile(`msg=lease vm=default/` + vm + ` nic=net0 address=(\S+)/16`)
	files, err := filepath.Glob(filepath.Join(s.h.Dir, "log", n.Name+"-*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range line.FindAllStringSubmatch(string(data), -1) {
			all = append(all, m[1])
		}
	}
	return all
}

// awaitLeases waits for so many of them and answers the last one.
func (s *site) awaitLeases(t *testing.T, n *harness.Node, vm string, count int) (address string) {
	t.Helper()
	s.within(t, "a lease", func() error {
		all := s.leases(t, n, vm)
		if len(all) < count {
			return fmt.Errorf("node %s gave %v", n.Name, all)
		}
		address = all[len(all)-1]
		return nil
	})
	return address
}
