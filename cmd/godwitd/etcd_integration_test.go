//go:build integration

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"godwit.dev/godwit/api/config"
	"godwit.dev/godwit/api/record"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// The records of a daemon lie in a real etcd, reached by TLS; with another authority's
// certificate it is not reached.
func TestRecordsInEtcd(t *testing.T) {
	dir := t.TempDir()
	var urls [2]string
	for i := range urls {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		urls[i] = "https://" + l.Addr().String()
		l.Close()
	}
	binary, err := filepath.Abs("../../bin/tools/etcd/server")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(binary, "--data-dir", dir, "--auto-tls", "--peer-auto-tls", "--listen-client-urls", urls[0],
		"--advertise-client-urls", urls[0],
		"--listen-peer-urls", urls[1], "--initial-advertise-peer-urls", urls[1], "--initial-cluster", "default="+urls[1])
	cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatalf("start etcd (make tools builds it): %v", err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	cfg := config.Default()
	cfg.RunDir = t.TempDir()
	cfg.Controller.Etcd.Endpoints, cfg.Controller.Etcd.CA = urls[:1], filepath.Join(dir, "fixtures", "client", "cert.pem")
	d := &daemon{config: cfg}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		err := d.openRecords(t.Context())
		if err == nil {
			break
		}
		// etcd makes the file of its certificate before it writes it.
		early := errdefs.IsUnavailable(err) || errors.Is(err, os.ErrNotExist) || errdefs.IsInvalidArgument(err)
		if !early || time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { _ = d.undo[0]() })
	vm := &nodev1.VM{Namespace: "ns", Id: "a"}
	if _, err := d.records.Ensure(t.Context(), &nodev1.EnsureRequest{Vm: vm}); err != nil {
		t.Fatal(err)
	}
	cfg.Controller.Etcd.CA = "" // the system's
	waits, cancel := context.WithCancel(t.Context())
	go func() { // it waits, and says for what
		defer cancel()
		client := record.Local(cfg.DaemonSocket())
		defer client.Close()
		for err := error(nil); t.Context().Err() == nil &&
			!strings.Contains(fmt.Sprint(err), "controller.etcd.endpoints"); time.Sleep(50 * time.Millisecond) {
			_, err = client.List(t.Context(), &nodev1.ListRequest{})
		}
	}()
	if err := (&daemon{config: cfg}).openRecords(waits); !errdefs.IsUnavailable(err) {
		t.Errorf("an etcd of nobody's authority: %v", err)
	}
	cfg.Controller.Etcd.CA = filepath.Join(dir, "member", "snap", "db")
	if err := (&daemon{config: cfg}).openRecords(t.Context()); !errdefs.IsInvalidArgument(err) {
		t.Errorf("a CA that is none: %v", err)
	}
}
