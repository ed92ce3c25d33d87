package controller_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/ttrpc"
	"golang.org/x/sys/unix"

	"godwit.dev/godwit/migrate/controller"
	"godwit.dev/godwit/migrate/store/storetest"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// otherUser is the id of a user who is neither root nor the user of the tests.
const otherUser = 65534

// The local socket serves root and the daemon's own user, by what the kernel says of who connects: also where the
// file's mode lets others in. A user who is refused holds no other up.
func TestLocalSocketKnowsItsUsers(t *testing.T) {
	dir, err := os.MkdirTemp("", "gwl")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	srv, err := controller.NewServer()
	if err != nil {
		t.Fatal(err)
	}
	nodev1.RegisterRecordsService(srv, controller.New(storetest.NewMemory()))
	socket := filepath.Join(dir, "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Chmod(dir, 0o755),
		os.Chmod(socket, 0o777)); err != nil { //nolint:gosec // it is open to all: that is the test
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() { _ = controller.ServeLocal(t.Context(), srv, l) })
	t.Cleanup(func() { _ = srv.Close(); _ = l.Close(); wg.Wait() })

	answered := func(uid int) bool {
		conn, err := dialAs(uid, socket)
		if err != nil {
			t.Fatalf("connect as user %d: %v", uid, err)
		}
		client := ttrpc.NewClient(conn)
		defer client.Close()
		_, err = nodev1.NewRecordsClient(client).Get(t.Context(),
			&nodev1.GetRequest{Vm: &nodev1.VM{Namespace: "ns", Id: "a"}})
		t.Logf("user %d: %v", uid, err)
		return errdefs.IsNotFound(errgrpc.ToNative(err)) // there is no such record
	}
	if !answered(os.Geteuid()) {
		t.Error("the daemon's own user is refused")
	}
	if os.Geteuid() != 0 {
		t.Skip("only root can connect as somebody else")
	}
	if answered(otherUser) {
		t.Errorf("user %d is answered", otherUser)
	}
	if !answered(0) {
		t.Error("root is refused")
	}
}

// dialAs connects as a user: the kernel takes down who the thread is that does so.
func dialAs(uid int, socket string) (conn net.Conn, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlocks it: the thread ends with this
		if uid != os.Geteuid() {
			const keep = ^uintptr(0)
			if _, _, no := unix.RawSyscall(unix.SYS_SETRESUID, keep, uintptr(uid), keep); no != 0 {
				err = no
				return
			}
		}
		conn, err = new(net.Dialer).DialContext(context.Background(), "unix", socket)
	}()
	<-done
	return conn, err
}
