package shim

import (
	"testing"
	"time"

	"github.com/containerd/errdefs/pkg/errgrpc"

	"godwit.dev/godwit/api/config"
	machinev1 "godwit.dev/godwit/api/machine/v1"
)

// A move that may take longer than the node's operations is not cut short by the shims.
func TestTimeoutOfTheOrder(t *testing.T) {
	w := moving(t)
	w.cfg.Timeouts.Operation = config.Duration(time.Millisecond)
	w.store.early = make(chan struct{})
	if _, err := w.offer(); err != nil {
		t.Fatal(err)
	}
	send := func(ms int64) error {
		_, err := w.machineService().Send(t.Context(), &machinev1.SendRequest{Ref: w.ref(), Address: "b:1", Channel: "c",
			Certificate: []byte("d"), TimeoutMs: ms})
		return errgrpc.ToNative(err)
	}
	sent := make(chan error, 1)
	go func() { sent <- send(time.Hour.Milliseconds()) }()
	vm, _ := w.service.current()
	held := func() *capture { vm.mu.Lock(); defer vm.mu.Unlock(); return vm.op.capture }
	for held() == nil {
		time.Sleep(time.Millisecond)
	}
	if bound := vm.host.operationBound(0); bound != time.Millisecond {
		t.Fatalf("the node's own is %v", bound)
	}
	select {
	case err := <-sent:
		t.Fatalf("it was cut short: %v", err)
	case <-time.After(50 * time.Millisecond): // many times the node's bound
	}
	close(w.store.early)
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
}
