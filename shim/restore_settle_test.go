package shim

import (
	"testing"
	"testing/synctest"
	"time"

	"godwit.dev/godwit/shim/journal"
)

// After a live move the agent is asked only when the workload had as much time as the VMM took to load its state. One
// that has addresses to learn is asked at once.
func TestWorkloadComesFirstAfterAMove(t *testing.T) {
	for name, c := range map[string]struct {
		loading          time.Duration
		readdress, plugs bool
		want             time.Duration
	}{
		"a quick host":          {loading: 9 * time.Millisecond, want: 9 * time.Millisecond},
		"a slow host":           {loading: time.Minute, want: longestDefer},
		"with other addresses":  {loading: 9 * time.Millisecond, readdress: true},
		"whose NICs come later": {loading: 9 * time.Millisecond, plugs: true},
	} {
		synctest.Test(t, func(t *testing.T) {
			p, _ := syncedPod(t, newFakeAgent(&faults{}))
			if err := p.vm.write(func(j *journal.Journal) { j.Volumes = nil }); err != nil {
				t.Fatal(err)
			}
			p.vm.origin.arrival = &arrival{loading: c.loading}
			s := &starting{vm: p.vm, task: p.vm.owner, readdress: c.readdress, plugs: c.plugs}
			begun := time.Now()
			if err := s.deferAgent(t.Context(), nil); err != nil {
				t.Error(err)
			}
			if took := time.Since(begun); took != c.want {
				t.Errorf("%s: it is asked after %v, want %v", name, took, c.want)
			}
		})
	}
}
