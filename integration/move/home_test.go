//go:build integration

package move

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/integration/images"
	"godwit.dev/godwit/integration/observer"
)

// A VM of godwit run moves live, and back to the node where its container object is. The hooks of that object make its
// network there. Its address stays, also where others got addresses meanwhile, and a connection goes on: what speaks
// for the VM at home is not its kernel, and the VM says where it is before it is sent.
func TestHomeKeepsTheAddress(t *testing.T) {
	h := harness.New(t, harness.Options{Nodes: 2, Registry: harness.PlainHTTP, Godwitd: true, Images: true})
	a := h.Node(0)
	watch := listen(t, h)
	watch.Mark("boot")
	a.Godwit(t, "run", "-d", "--name", vm, "--memory", "96MiB", images.Probe, "-beacon",
		net.JoinHostPort(harness.Gateway, beacons))
	at := after(t, watch, "boot").From
	var line *observer.Line
	call := func(context.Context) (err error) {
		line, err = observer.CallEvery(t.Context(), h.Dial, at, bound, 50*time.Millisecond)
		return err
	}
	if err := harness.Poll(t.Context(), bound, call); err != nil {
		t.Fatal(err)
	}
	for _, to := range []string{"b", "a"} {
		if m := migrate(t, a, vm, "--to", to, "--mode", "live"); m.Operation.Phase != "succeeded" {
			t.Fatalf("to %s: %+v", to, m)
		}
		watch.Mark(to)
		if now := after(t, watch, to).From; now != at {
			t.Errorf("at %s its address is %s, was %s", to, now, at)
		}
		said := line.Said().Asked
		err := harness.Poll(t.Context(), bound, func(ctx context.Context) error {
			now := line.Said()
			switch {
			case now.Err != nil:
				return now.Err
			case now.Asked > said:
				return nil
			}
			return errors.New("the connection has no answer")
		})
		if err != nil {
			t.Errorf("to %s: %v", to, err)
		}
		if to == "b" { // the address is free at its home
			a.Godwit(t, "run", "-d", "--name", "other", "--memory", "96MiB", images.Busybox, "sleep", "1000")
		}
	}
	if said := line.HangUp(); said.Err != nil {
		t.Errorf("the connection ended: %v", said.Err)
	}
	for _, name := range []string{vm, "other"} {
		a.Godwit(t, "rm", name, "--force")
	}
	if out := a.Godwit(t, "ps", "-a", "-q"); strings.TrimSpace(out) != "" {
		t.Errorf("left: %s", out)
	}
}
