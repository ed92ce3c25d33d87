package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"godwit.dev/godwit/migrate/controller"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// waker is a godwitd that takes orders to wake.
type waker struct {
	refuses error // each order to the controller

	mu           sync.Mutex
	there, local []*nodev1.WakeOrder // by the controller's choice, and on this node
}

// What it serves: both have a method of that name.
type (
	wakerNode struct {
		nodev1.NodeService
		*waker
	}
	wakerMoves struct {
		nodev1.MovesService
		*waker
	}
)

func awake(id string) *nodev1.StatusResponse {
	return &nodev1.StatusResponse{Settled: true, Operation: &nodev1.Operation{
		Id: id, Kind: nodev1.Kind_KIND_WAKE, Phase: nodev1.Phase_PHASE_SUCCEEDED, Destination: "b",
		Vm: &nodev1.VM{Namespace: "default", Id: "web"},
	}}
}

func (w wakerNode) Wake(_ context.Context, req *nodev1.WakeRequest) (*nodev1.StatusResponse, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.local = append(w.local, &nodev1.WakeOrder{Wake: req})
	return awake(req.GetOperation()), nil
}

func (wakerNode) VMs(context.Context, *nodev1.VMsRequest) (*nodev1.VMsResponse, error) {
	return &nodev1.VMsResponse{}, nil
}

func (wakerNode) Recorded(_ context.Context, req *nodev1.GetRequest) (*nodev1.Record, error) {
	return &nodev1.Record{Vm: req.GetVm()}, nil
}

func (w wakerMoves) Wake(_ context.Context, order *nodev1.WakeOrder) (*nodev1.StatusResponse, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.there = append(w.there, order)
	if w.refuses != nil {
		return nil, w.refuses
	}
	return awake(order.GetWake().GetOperation()), nil
}

// serveWaker answers the socket of one.
func serveWaker(t *testing.T, w *waker) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "g") // the name of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	srv, err := controller.NewServer()
	if err != nil {
		t.Fatal(err)
	}
	nodev1.RegisterNodeService(srv, wakerNode{waker: w})
	nodev1.RegisterMovesService(srv, wakerMoves{waker: w})
	socket := filepath.Join(dir, "s")
	serveLocal(t, srv, socket)
	return socket
}

// The controller is asked where a VM shall wake, with all that was said. What is of this node alone, and what a daemon
// of a build before does not know, is this node's. That it fits nowhere is ResourceExhausted.
func TestWakeOrders(t *testing.T) {
	full := fmt.Errorf("WakeNoCapacity: node b: no room: %w", errdefs.ErrResourceExhausted)
	for line, tt := range map[string]struct {
		refuses      error
		there, local *nodev1.WakeOrder
		code         int
		says         string
	}{
		"wake web": {there: &nodev1.WakeOrder{Wake: &nodev1.WakeRequest{}}, says: "default/web runs on b"},
		"wake web --on b --operation w --stdio null:// --force --digest " + someDigest: {
			there: &nodev1.WakeOrder{On: "b", Wake: &nodev1.WakeRequest{Operation: "w", Stdio: "null://", Force: true,
				Digest: someDigest}}, says: "runs on b"},
		"wake web --lost-node a": {local: &nodev1.WakeOrder{Wake: &nodev1.WakeRequest{LostNode: "a"}}, says: "runs on b"},
		"wake web --detach": {refuses: errdefs.ErrNotImplemented, there: &nodev1.WakeOrder{Wake: &nodev1.WakeRequest{}},
			local: &nodev1.WakeOrder{Wake: &nodev1.WakeRequest{}}, says: "runs on b"},
		"wake web --on c": {refuses: errdefs.ErrNotImplemented,
			there: &nodev1.WakeOrder{On: "c", Wake: &nodev1.WakeRequest{}}, code: 10, says: "not implemented"},
		"-o json wake web": {refuses: full, there: &nodev1.WakeOrder{Wake: &nodev1.WakeRequest{}}, code: 8,
			says: `"class":"ResourceExhausted"`},
		"wake web --wait --timeout 1s": {refuses: full, there: &nodev1.WakeOrder{Wake: &nodev1.WakeRequest{}}, code: 8,
			says: "after 1s: WakeNoCapacity: node b: no room"},
	} {
		t.Run(line, func(t *testing.T) {
			w := &waker{refuses: tt.refuses}
			socket := serveWaker(t, w)
			var out bytes.Buffer
			got := Run(t.Context(), append([]string{"-n", "default", "--socket", socket}, strings.Fields(line)...), &out, &out)
			if said := strings.ReplaceAll(out.String(), `": "`, `":"`); got != tt.code || !strings.Contains(said, tt.says) {
				t.Errorf("exit code %d, want %d; %s", got, tt.code, &out)
			}
			for _, side := range []struct {
				what string
				got  []*nodev1.WakeOrder
				want *nodev1.WakeOrder
			}{{"the controller", w.there, tt.there}, {"this node", w.local, tt.local}} {
				if side.want == nil && len(side.got) == 0 {
					continue
				}
				if len(side.got) != 1 {
					t.Fatalf("%s was asked %v", side.what, side.got)
				}
				req := proto.CloneOf(side.got[0])
				if side.want.GetWake().GetOperation() == "" && (req.GetWake().GetOperation() != "" ||
					side.want.GetWake().GetLostNode() != "") {
					req.Wake.Operation = "" // it has one, to be repeated safely
				}
				req.Wake.Vm = nil
				if !proto.Equal(req, side.want) {
					t.Errorf("%s was asked %v, want %v", side.what, req, side.want)
				}
			}
		})
	}
}

// A caller that waits gives the same order again until it fits, another error comes, time is up, or the user has
// enough. A reason is told once.
func TestWakeWaits(t *testing.T) {
	full := func(why string) error { return fmt.Errorf("%s: %w", why, errdefs.ErrResourceExhausted) }
	for name, tt := range map[string]struct {
		answers []error // the last one for ever
		took    time.Duration
		says    int // reasons
		is      func(error) bool
	}{
		"it fits":      {[]error{nil}, 0, 0, nil},
		"it fits soon": {[]error{full("a"), full("a"), full("b"), nil}, 3 * noCapacityPause, 2, nil},
		"it is gone":   {[]error{full("a"), errdefs.ErrNotFound}, noCapacityPause, 1, errdefs.IsNotFound},
		"never":        {[]error{full("a")}, time.Minute, 1, errdefs.IsResourceExhausted},
		"called off": {[]error{full("a"), full("a"), context.Canceled}, 2 * noCapacityPause, 1, func(err error) bool {
			return errors.Is(err, context.Canceled)
		}},
	} {
		synctest.Test(t, func(t *testing.T) {
			f, cmd, begun := &wakeFlags{timeout: time.Minute}, &cobra.Command{}, time.Now()
			var told bytes.Buffer
			cmd.SetErr(&told)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			tries := 0
			_, err := f.untilFits(cmd, &options{}, func(context.Context, *nodev1.WakeOrder) (*nodev1.StatusResponse, error) {
				answer := tt.answers[min(tries, len(tt.answers)-1)]
				tries++
				if errors.Is(answer, context.Canceled) {
					cancel()
					answer = full("a")
				}
				return nil, answer
			})(ctx, &nodev1.WakeOrder{})
			took := time.Since(begun)
			if took > tt.took || tt.took-took > noCapacityPause || strings.Count(told.String(), "\n") != tt.says ||
				tt.is == nil && err != nil || tt.is != nil && !tt.is(err) {
				t.Errorf("%s: %v after %v and %d tries, told %q", name, err, took, tries, &told)
			}
		})
	}
}
