package shim

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	agentv1 "godwit.dev/godwit/api/agent/v1"
	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/shim/bundle"
	"godwit.dev/godwit/shim/journal"
)

// unable is a guest in which what a host has to say meets something that hangs.
type unable struct {
	*fakeAgent
	files, nics bool // what hangs
	old, held   bool // each Restored takes a lock, also one that has no files; it is held since before the VM slept
	lock        chan struct{}
	asked       []*agentv1.RestoredRequest
	at          []time.Time
	set         int
}

func (u *unable) Restored(ctx context.Context, r *agentv1.RestoredRequest) (*agentv1.RestoredResponse, error) {
	u.mu.Lock()
	u.asked, u.at = append(u.asked, r), append(u.at, time.Now())
	u.mu.Unlock()
	hangs := u.files && len(r.GetFiles()) > 0
	if u.nics && r.GetSetNics() {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if u.lock != nil {
		select {
		case u.lock <- struct{}{}:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if !hangs { // else it is held for good
			defer func() { <-u.lock }()
		}
	}
	if hangs {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if r.GetSetNics() {
		u.set++
	}
	return u.fakeAgent.Restored(ctx, r)
}

func (u *unable) ConfigureNetwork(ctx context.Context,
	_ *agentv1.ConfigureNetworkRequest) (*agentv1.ConfigureNetworkResponse, error) {
	if u.nics {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	u.set++
	return &agentv1.ConfigureNetworkResponse{}, nil
}

// A VM that was committed is not ended because a call hangs in its guest: over a file of a FUSE that waits for the
// network, or over a NIC. What does not hang is done, and no call sets the guest's clock back.
func TestWakesWhereACallHangs(t *testing.T) {
	for name, guest := range map[string]*unable{"files": {files: true}, "NICs": {nics: true},
		"both": {files: true, nics: true}, "files, earlier build": {files: true, old: true},
		"NICs, earlier build": {nics: true, old: true}, "both, earlier build": {files: true, nics: true, old: true},
		"it hung before it slept": {old: true, held: true}} {
		resolv := filepath.Join(t.TempDir(), "resolv.conf")
		if err := os.WriteFile(resolv, []byte("nameserver 10.0.0.53\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		synctest.Test(t, func(t *testing.T) {
			guest.fakeAgent = newFakeAgent(&faults{})
			guest.exit("")
			if guest.old {
				guest.lock = make(chan struct{}, 1)
			}
			if guest.held {
				guest.lock <- struct{}{}
			}
			vm := bareVM(t, guest)
			vm.journal.Begin(t.TempDir(), &journal.Journal{Resources: journal.Resources{Spec: &spec.Spec{
				NICs: []spec.NIC{{Addresses: []netip.Prefix{netip.MustParsePrefix("10.0.0.77/24")}}}}}})
			vm.owner.bundle = &bundle.Bundle{Copies: bundle.Copies{{Source: resolv, Destination: "/etc/resolv.conf"}}}
			s := &starting{vm: vm, task: vm.owner, readdress: true}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if err := s.woken.meet(ctx, s, guest); err != nil || s.woken.err != nil || s.woken.answer == nil {
				t.Errorf("%s: %v, %v, answer %v", name, err, s.woken.err, s.woken.answer)
			}
			if !hasProcess(s.woken.answer.GetProcesses(), "") || s.woken.answer.GetBootId() == "" {
				t.Errorf("%s: it is not known who the guest is: %v", name, s.woken.answer)
			}
			if guest.nics != (s.woken.nics != nil) || guest.set == 0 && !guest.nics {
				t.Errorf("%s: NICs: %v, set %d times", name, s.woken.nics, guest.set)
			}
			for i, r := range guest.asked {
				if len(r.GetFiles()) > 0 && r.GetUnixNano() == 0 { // the guest leaves its clock then
					continue
				}
				if at := time.Unix(0, r.GetUnixNano()); !at.Equal(guest.at[i]) {
					t.Errorf("%s: call %d, at %v, says that it is %v", name, i, guest.at[i], at)
				}
			}
		})
	}
}
