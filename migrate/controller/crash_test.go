package controller_test

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/migrate/controller"
	"godwit.dev/godwit/migrate/store"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// childDir tells a copy of this test that it is the controller to be killed.
const childDir = "GODWIT_TEST_CONTROLLER_DIR"

func TestMain(m *testing.M) {
	if dir := os.Getenv(childDir); dir != "" {
		if err := child(dir); err != nil {
			_, _ = os.Stderr.WriteString(err.Error() + "\n")
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

func child(dir string) error {
	st, err := store.Open(filepath.Join(dir, "records.db"))
	if err != nil {
		return err
	}
	srv, err := controller.NewServer()
	if err != nil {
		return err
	}
	nodev1.RegisterRecordsService(srv, controller.New(st))
	socket := filepath.Join(dir, "s")
	if err := os.Remove(socket); err != nil && !os.IsNotExist(err) {
		return err
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	return controller.ServeLocal(context.Background(), srv, l)
}

// TestControllerKilled kills the controller among changes: what it has answered
// is there after the restart, and at most the one change that was under way on top.
func TestControllerKilled(t *testing.T) {
	dir := t.TempDir()
	client := record.Local(filepath.Join(dir, "s"))
	t.Cleanup(func() { _ = client.Close() })
	vm := &nodev1.VM{Namespace: "default", Id: "web"}
	var acknowledged uint64
	for range 5 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), childDir+"="+dir)
		cmd.Stderr = os.Stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		rec := ensure(t, client, vm)
		if g := rec.GetGeneration(); g < acknowledged || g > acknowledged+1 {
			t.Fatalf("generation %d after the restart, %d was answered", g, acknowledged)
		}
		acknowledged = rec.GetGeneration()
		for n := 0; ; n++ {
			next, err := ctxLock(t, client, rec)
			if err != nil && n == 0 {
				t.Errorf("the first change: %v", err)
			}
			if err != nil {
				break
			}
			if n == 0 {
				time.AfterFunc(50*time.Millisecond, func() { _ = cmd.Process.Kill() })
			}
			rec, acknowledged = next, next.GetGeneration()
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
}

// ensure waits for the controller to serve.
func ensure(t *testing.T, client *record.Client, vm *nodev1.VM) *nodev1.Record {
	t.Helper()
	for {
		rec, err := client.Ensure(t.Context(), &nodev1.EnsureRequest{Vm: vm})
		if err == nil {
			return rec
		}
		if !errdefs.IsUnavailable(err) || t.Context().Err() != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Millisecond)
	}
}

// ctxLock owns or ends the ownership: every change is a generation.
func ctxLock(t *testing.T, client *record.Client, rec *nodev1.Record) (*nodev1.Record, error) {
	t.Helper()
	if rec.GetOwner() == nil {
		return client.Own(t.Context(), &nodev1.OwnRequest{Vm: rec.GetVm(), Node: "n1", Generation: rec.GetGeneration()})
	}
	return client.Disown(t.Context(), &nodev1.DisownRequest{Vm: rec.GetVm(), Node: "n1", Generation: rec.GetGeneration()})
}
