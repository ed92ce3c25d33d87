//go:build integration

package nodeagent

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/decide"
	"godwit.dev/godwit/migrate/kubernetes/operator"
)

// teller is an engine whose guests take words of snapshots, and that can do nothing else.
type teller struct {
	operator.Engine
	mu    sync.Mutex
	fails []fault             // of the next calls
	told  map[string][]string // by snapshot: digests
	early []string            // what was told before the API server had the snapshot as Ready
}

func (e *teller) Tell(ctx context.Context, told operator.Told) error {
	snap := &v1alpha1.VMSnapshot{}
	if err := api().Get(ctx, types.NamespacedName{Namespace: "default", Name: told.Name}, snap); err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if !meta.IsStatusConditionTrue(snap.Status.Conditions, decide.CondReady) || snap.Status.Digest != told.Digest ||
		string(snap.UID) != told.Operation || told.Record.GetOwner().GetNode() != "a" {
		e.early = append(e.early, fmt.Sprintf("%+v of %+v", told, snap.Status))
	}
	f := none
	if len(e.fails) > 0 {
		f, e.fails = e.fails[0], e.fails[1:]
	}
	if f != refused {
		if e.told == nil {
			e.told = map[string][]string{}
		}
		e.told[told.Name] = append(e.told[told.Name], told.Digest)
	}
	if f != none {
		return errFault
	}
	return nil
}

// reaching runs an operator that reaches guests.
func reaching(t *testing.T, e operator.Engine, change ...func(*rest.Config)) (stop func()) {
	t.Helper()
	return run(t, func(ctx context.Context, log *slog.Logger) error {
		config := as("godwit-operator")
		for _, c := range change {
			c(config)
		}
		return operator.Run(ctx, operator.Options{Config: config, Namespace: system, Log: log, Engine: e})
	})
}

// Its workload is told of a snapshot after the API server has it as Ready. A call that fails, or whose answer is lost,
// is made again. So is one whose word the status lost. Ready stays meanwhile.
func TestSentinelAfterReady(t *testing.T) {
	g := newGodwitd(t)
	e := &teller{}
	stop := reaching(t, e)
	startAgent(t, g)
	vmRuns(t, g, "told", true)
	is := func(name string, most int) {
		t.Helper()
		snap := snapshotIs(t, name, decide.CondTold, decide.ReasonTold)
		e.mu.Lock()
		defer e.mu.Unlock()
		got := e.told[name]
		if len(got) == 0 || len(got) > most || got[0] != snap.Status.Digest || len(e.early) > 0 ||
			!meta.IsStatusConditionTrue(snap.Status.Conditions, decide.CondReady) {
			t.Errorf("%s: told %q, early %q, %+v", name, got, e.early, snap.Status)
		}
	}
	create(t, newSnapshot("told-0", "told"))
	is("told-0", 1)
	for i, fails := range [][]fault{{refused}, {answerLost}, {answerLost, refused}} {
		e.mu.Lock()
		e.fails = fails
		e.mu.Unlock()
		name := fmt.Sprint("told-", i+1)
		create(t, newSnapshot(name, "told"))
		is(name, 2)
	}
	stop()
	writes := &faults{}
	stop = reaching(t, e, writes.into)
	create(t, newSnapshot("told-clean", "told"))
	is("told-clean", 1)
	stop()
	for n := 1; n <= writes.n; n++ {
		for _, lost := range []bool{false, true} {
			api := &faults{at: n, lost: lost}
			stop := reaching(t, e, api.into)
			name := fmt.Sprintf("told-%d-%t", n, lost)
			create(t, newSnapshot(name, "told"))
			is(name, 2)
			stop()
		}
	}
	t.Logf("%d writes of the operator failed, one by one", writes.n)
}
