package shim

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/containerd/errdefs"

	agentv1 "godwit.dev/godwit/api/agent/v1"
	"godwit.dev/godwit/shim/bundle"
	"godwit.dev/godwit/shim/starts"
)

// stubborn is a guest in which its workload is in the way of what a host has to say.
type stubborn struct {
	*fakeAgent
	old         bool // it answers an error, as guests of earlier builds do
	files, nics bool // what does not go

	mu    sync.Mutex
	asked []string
	calls atomic.Int64 // of ConfigureNetwork
	set   atomic.Bool
	clock atomic.Bool // was set while the VM runs
}

func (s *stubborn) Restored(ctx context.Context, r *agentv1.RestoredRequest) (*agentv1.RestoredResponse, error) {
	s.mu.Lock()
	asked := fmt.Sprintf("nics %t, files %d", r.GetSetNics(), len(r.GetFiles()))
	if len(r.GetFiles()) > 0 && r.GetUnixNano() != 0 { // a call that is slow would set the clock back
		asked += ", and the time"
	}
	s.asked = append(s.asked, asked)
	s.mu.Unlock()
	answer, err := s.fakeAgent.Restored(ctx, r)
	if s.nics && r.GetSetNics() {
		answer.NicProblem = "rename eth1 to eth0: file exists"
	}
	if s.files && len(r.GetFiles()) > 0 {
		answer.FileProblems = []string{"copy /etc/resolv.conf: operation not permitted"}
	}
	if problem := answer.GetNicProblem() + strings.Join(answer.GetFileProblems(), ""); s.old && problem != "" {
		return nil, fmt.Errorf("%s: %w", problem, errdefs.ErrPermissionDenied)
	}
	return answer, err
}

func (s *stubborn) ConfigureNetwork(context.Context,
	*agentv1.ConfigureNetworkRequest) (*agentv1.ConfigureNetworkResponse, error) {
	if s.calls.Add(1) == 1 && s.nics && s.old { // while it is met
		return nil, errdefs.ErrPermissionDenied
	}
	s.set.Store(true)
	return &agentv1.ConfigureNetworkResponse{}, nil
}

func (s *stubborn) SetClock(ctx context.Context, r *agentv1.SetClockRequest) (*agentv1.SetClockResponse, error) {
	s.clock.Store(true)
	return s.fakeAgent.SetClock(ctx, r)
}

// A workload may keep its guest from hearing where it is: by an immutable resolv.conf, or a NIC that has the name of
// another. Its VM wakes all the same, also in a guest of an earlier build. That is said, and a NIC is set later.
func TestWakesWithoutKnowingWhereItIs(t *testing.T) {
	for name, guest := range map[string]*stubborn{
		"files": {files: true}, "NICs": {nics: true}, "both": {files: true, nics: true},
		"files, earlier build": {files: true, old: true}, "NICs, earlier build": {nics: true, old: true},
		"both, earlier build": {files: true, nics: true, old: true}, "neither": {},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t).asleep()
			resolv := filepath.Join(t.TempDir(), "resolv.conf")
			w.must("write", os.WriteFile(resolv, []byte("nameserver 10.0.0.53\n"), 0o600))
			w.links[0].NIC.Addresses = []netip.Prefix{netip.MustParsePrefix("10.0.0.77/24")}
			w.guest = func(a *fakeAgent) Agent { guest.fakeAgent = a; return guest }
			w.must("create", w.create())
			vm, err := w.service.current()
			w.must("find VM", err)
			vm.owner.bundle.Copies = bundle.Copies{{Source: resolv, Destination: "/etc/resolv.conf"}}
			w.must("start", w.start())
			all := w.started()
			if o := all[len(all)-1]; o.Failed || (o.Address.Result == starts.AddressFailed) != guest.nics {
				t.Errorf("the start is noted as %+v", o)
			}
			if !slices.Contains(guest.asked, "nics true, files 0") || !slices.Contains(guest.asked, "nics false, files 1") {
				t.Errorf("the guest was asked for %q", guest.asked)
			}
			if !eventually(guest.clock.Load) {
				t.Error("its clock, which the wake may have set late, is not set forward while the VM runs")
			}
			if guest.nics && !eventually(guest.set.Load) {
				t.Error("the NICs are not set while the VM runs")
			}
		})
	}
}
