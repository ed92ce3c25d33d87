package shim

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"

	agentv1 "godwit.dev/godwit/api/agent/v1"
	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/shim/journal"
)

// misnamed is a guest whose NICs never are as they should be. What it says of them changes once.
type misnamed struct {
	*fakeAgent
	calls atomic.Int64
}

func (m *misnamed) ConfigureNetwork(context.Context,
	*agentv1.ConfigureNetworkRequest) (*agentv1.ConfigureNetworkResponse, error) {
	if m.calls.Add(1) < 3 {
		return nil, fmt.Errorf("no eth1\nat all: %w", errdefs.ErrNotFound)
	}
	return nil, fmt.Errorf("eth0 is that of another: %w", errdefs.ErrAlreadyExists)
}

// What a workload is in the way of is tried again with pauses that grow, and each new reason is logged once.
func TestNICsThatNeverAreAsTheyShouldBe(t *testing.T) {
	var log bytes.Buffer
	guest := &misnamed{fakeAgent: newFakeAgent(&faults{})}
	synctest.Test(t, func(t *testing.T) {
		vm := bareVM(t, guest)
		vm.log = slog.New(slog.NewTextHandler(&log, nil))
		vm.journal.Begin(t.TempDir(), &journal.Journal{Resources: journal.Resources{Spec: &spec.Spec{}}})
		ctx, cancel := context.WithCancel(t.Context())
		vm.traffic.ctx = ctx
		w := &woken{nics: errors.New("the guest says: no")}
		w.settle(&starting{vm: vm})
		time.Sleep(20 * keepPause)
		cancel()
		vm.traffic.watchers.Wait()
	})
	if n := guest.calls.Load(); n < 20 || n > 40 {
		t.Errorf("the guest was asked %d times in %v", n, 20*keepPause)
	}
	for _, text := range []string{"no eth1", "eth0 is that of another"} {
		if n := strings.Count(log.String(), text); n != 1 {
			t.Errorf("%q is logged %d times:\n%.2000s", text, n, log.String())
		}
	}
}
