package node

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/config"
	nodev1 "godwit.dev/godwit/api/node/v1"
)

// A shim that is stopped takes connections and says nothing. It delays no caller that asks for
// all VMs of the node, and is not taken for one that died.
func TestQueryOfAShimThatHangs(t *testing.T) {
	real := answerTimeout
	t.Cleanup(func() { answerTimeout = real })
	answerTimeout = 50 * time.Millisecond
	dir, err := os.MkdirTemp("", "gn") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	cfg := config.Default()
	cfg.RunDir, cfg.StateDir = dir, dir
	socket := cfg.MachineSocket("ns", "vm")
	if err := os.MkdirAll(filepath.Dir(socket), 0o700); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	answer := make(chan error, 1)
	go func() {
		_, err := (&Machines{Config: cfg}).Query(t.Context(), &nodev1.VM{Namespace: "ns", Id: "vm"})
		answer <- err
	}()
	select {
	case err := <-answer:
		if !errors.Is(err, context.DeadlineExceeded) || errdefs.IsUnavailable(err) {
			t.Errorf("query = %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("the query waits")
	}
}

// A directory without a journal holds nothing of a VM: its shim is not waited for.
func TestQueryOfAVMWithoutJournal(t *testing.T) {
	cfg := config.Default()
	cfg.StateDir, cfg.RunDir, cfg.RAMDir = t.TempDir(), t.TempDir(), t.TempDir()
	m, vm := &Machines{Config: cfg}, &nodev1.VM{Namespace: "ns", Id: "vm"}
	dir := cfg.VMDir("ns", "vm")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Query(t.Context(), vm); !errdefs.IsNotFound(err) {
		t.Errorf("without a journal: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "node.json"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Query(t.Context(), vm); !errdefs.IsUnavailable(err) {
		t.Errorf("with one: %v", err)
	}
}
