package shim

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs/pkg/errgrpc"

	agentv1 "godwit.dev/godwit/api/agent/v1"
	"godwit.dev/godwit/api/config"
	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/shim/journal"
	"godwit.dev/godwit/shim/proc"
	"godwit.dev/godwit/shim/steps"
	"godwit.dev/godwit/vmm"
)

// slowGuest answers each call so late, or that much after the first one.
type slowGuest struct {
	*fakeAgent
	each  time.Duration
	until time.Time
	nics  bool // each call with NICs hangs
}

func (g *slowGuest) wait(ctx context.Context) error {
	late := time.NewTimer(max(g.each, time.Until(g.until)))
	defer late.Stop()
	select {
	case <-late.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (g *slowGuest) Restored(ctx context.Context, r *agentv1.RestoredRequest) (*agentv1.RestoredResponse, error) {
	if err := g.wait(ctx); err != nil {
		return nil, err
	}
	if g.nics && r.GetSetNics() {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return g.fakeAgent.Restored(ctx, r)
}

func (g *slowGuest) ConfigureNetwork(ctx context.Context,
	_ *agentv1.ConfigureNetworkRequest) (*agentv1.ConfigureNetworkResponse, error) {
	if g.nics {
		<-ctx.Done()
	}
	return &agentv1.ConfigureNetworkResponse{}, ctx.Err()
}

func (g *slowGuest) Info(ctx context.Context, r *agentv1.InfoRequest) (*agentv1.InfoResponse, error) {
	if err := g.wait(ctx); err != nil {
		return nil, err
	}
	return g.fakeAgent.Info(ctx, r)
}

// wakes is the Start of a VM that was committed, with an address of its own.
func wakes(t *testing.T, guest Agent) *starting {
	vm := bareVM(t, guest)
	id, err := proc.Find(os.Getpid()) // the VMM lives
	if err != nil {
		t.Fatal(err)
	}
	vm.journal.Begin(t.TempDir(), &journal.Journal{Resources: journal.Resources{Spec: &spec.Spec{
		NICs: []spec.NIC{{Addresses: []netip.Prefix{netip.MustParsePrefix("10.0.0.77/24")}}}},
		Process: &vmm.Process{PID: id.PID, StartTime: id.StartTime, Boot: id.Boot}}})
	return &starting{vm: vm, task: vm.owner}
}

// A guest that is slow has all of the time that a wake has, whatever it is told. One that has not answered by then has
// not answered: that is an error of the call, so that a guest that waits for its RAM is asked again.
func TestMeetsASlowGuest(t *testing.T) {
	for name, c := range map[string]struct {
		each, until time.Duration
		met         bool
	}{
		"each call takes long":   {each: 40 * time.Second, met: true},
		"it begins to run late":  {until: 40 * time.Second, met: true},
		"it is too late":         {until: 90 * time.Second},
		"each call is too slow":  {each: 90 * time.Second},
		"it begins at last":      {until: 59 * time.Second, met: true},
		"each call takes a time": {each: 50 * time.Second, met: true},
	} {
		for _, readdress := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				guest := &slowGuest{fakeAgent: newFakeAgent(&faults{}), each: c.each, until: time.Now().Add(c.until)}
				s := wakes(t, guest)
				s.readdress = readdress
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				err := s.woken.meet(ctx, s, guest)
				if met := err == nil && s.woken.err == nil && s.woken.answer != nil; met != c.met || met != (err == nil) {
					t.Errorf("%s, other address %v: %v, %v, answer %v", name, readdress, err, s.woken.err, s.woken.answer)
				}
			})
		}
	}
}

// dialled is a host whose Dial bounds the first call, as the client of the guest does.
func dialled(s *starting, guest Agent, bound time.Duration) (times *int) {
	times = new(int)
	s.vm.origin.restored = true
	s.vm.host.Dial = func(ctx context.Context, _ vmm.Machine, _ string, first FirstCall) (Agent, error) {
		*times++
		ctx, cancel := context.WithTimeout(ctx, bound)
		defer cancel()
		return guest, first(ctx, guest)
	}
	return times
}

// A guest that waits for pages which come after some minutes is asked again until it answers.
func TestMeetsAGuestWhosePagesAreLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		guest := &slowGuest{fakeAgent: newFakeAgent(&faults{}), until: time.Now().Add(5 * time.Minute)}
		s := wakes(t, guest)
		s.vm.postcopy.fill = &filling{vm: s.vm, here: make(chan struct{}), over: make(chan struct{})}
		times := dialled(s, guest, time.Minute)
		if err := s.connect(t.Context(), new(steps.Undo)); err != nil || s.woken.err != nil || s.woken.answer == nil {
			t.Errorf("%v, %v, answer %v", err, s.woken.err, s.woken.answer)
		}
		if *times < 5 {
			t.Errorf("it was dialled %d times", *times)
		}
	})
}

// What is told to a guest that answers in the last moment does not run into the bound of the Start.
func TestSlowGuestThatHangsInNICs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		guest := &slowGuest{fakeAgent: newFakeAgent(&faults{}), until: time.Now().Add(55 * time.Second), nics: true}
		s := wakes(t, guest)
		s.readdress = true
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		s.late = time.AfterFunc(time.Duration(s.vm.host.Config.Timeouts.Boot), s.boundAfterFill(cancel))
		defer s.late.Stop()
		dialled(s, guest, time.Minute)
		if err := s.connect(ctx, new(steps.Undo)); err != nil || ctx.Err() != nil || s.woken.nics == nil {
			t.Errorf("%v, %v, NICs %v", err, ctx.Err(), s.woken.nics)
		}
	})
}

// The Start of a guest that never answers ends, and says why.
func TestGuestThatNeverAnswersItsWake(t *testing.T) {
	w := newWorld(t).asleep()
	w.cfg.Timeouts.Boot = config.Duration(50 * time.Millisecond)
	w.guest = func(a *fakeAgent) Agent { return &slowGuest{fakeAgent: a, each: time.Hour} }
	w.must("create", w.create())
	err := errgrpc.ToNative(w.start())
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "timeouts.boot") {
		t.Errorf("start = %v", err)
	}
	w.must("delete", w.delete())
	w.nothingLeft()
}
