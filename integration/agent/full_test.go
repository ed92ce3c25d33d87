//go:build integration

package agent

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	agentv1 "godwit.dev/godwit/api/agent/v1"
	"godwit.dev/godwit/guest/client"
	"godwit.dev/godwit/vmm"

	"github.com/containerd/continuity/pkg/ext4"
	"golang.org/x/sys/unix"
)

// smallDisk puts the writable disk on a host file system of that many MiB, and answers
// how to make it larger.
func (m *machine) smallDisk(size int) (grow func(size int)) {
	m.t.Helper()
	dir := filepath.Join(m.dir, "small")
	if err := os.Mkdir(dir, 0o700); err != nil {
		m.t.Fatal(err)
	}
	mount := func(flags uintptr, size int) {
		m.t.Helper()
		if err := unix.Mount("small", dir, "tmpfs", flags, fmt.Sprintf("size=%dm", size)); err != nil {
			m.t.Fatal(err)
		}
	}
	mount(0, size)
	m.t.Cleanup(func() { // before the VM's own files go
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			m.t.Error(err)
		}
	})
	path := filepath.Join(dir, "rw.ext4")
	if err := ext4.Create(path, 256<<20, ext4.WithDir("/upper", 0o755, 0, 0),
		ext4.WithDir("/work", 0o755, 0, 0)); err != nil {
		m.t.Fatal(err)
	}
	m.disks[1].File.Close()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		m.t.Fatal(err)
	}
	m.disks[1].File = f
	return func(size int) { mount(unix.MS_REMOUNT, size) }
}

// A host without space under the writable disk makes the VM stand still, with what it
// wrote kept: it moves to another process so, goes on when there is space, and its file
// system never saw an error.
func TestFullHostDisk(t *testing.T) {
	m := newMachine(t)
	grow := m.smallDisk(4)
	m.boot().setup(nil).init()
	const script = "dd if=/dev/zero bs=1M count=24 2>/dev/null | tr '\\000' x >/data/big; sync; echo done; md5sum " +
		"</data/big; dmesg | grep -ciE 'I/O error|ext4-fs error'"
	if err := m.start("writer", process("sh", "-c", script)); err != nil {
		t.Fatal(err)
	}
	stalled := func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		_, err := m.agent.Info(ctx, &agentv1.InfoRequest{})
		return err != nil
	}
	m.until(stalled)
	m.move(func() { m.agent.Move(m.socket()) }, func() {})
	if !stalled() {
		t.Fatal("the VM runs on without space for what it wrote")
	}
	grow(64)
	var out bytes.Buffer
	if err := m.agent.NewStreams("writer", client.Offsets{}).CopyStdout(t.Context(), &out); err != nil {
		t.Fatal(err)
	}
	if want := "done\ncc3500a277c8a4cbffeeebed26a465d5  -\n0\n"; out.String() != want {
		t.Errorf("the guest says %q, want %q", out.String(), want)
	}
	if did := m.did(); len(did) < 2 || did[len(did)-1] != vmm.Resumed || did[len(did)-2] != vmm.Paused {
		t.Errorf("QEMU tells %v: who sets the guest's clock does not hear that it stood still", did)
	}
}

// did answers what the VMM has told of stops so far.
func (m *machine) did() (all []vmm.EventKind) {
	for {
		select {
		case e := <-m.vm.Events():
			if e.Kind == vmm.Paused || e.Kind == vmm.Resumed {
				all = append(all, e.Kind)
			}
		default:
			return all
		}
	}
}
