package agentd

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	agentv1 "godwit.dev/godwit/api/agent/lean"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// What lists processes fits into the answer that the host takes, also that of an earlier build: 256 KiB. Inits are in
// it, and what runs. Of what has ended, the latest are.
func TestListsAreBounded(t *testing.T) {
	const hostTakes = 256 << 10
	s := newService(newContainer("", "", ""))
	add := func(id string, ended time.Time) {
		p := newProcess(id, s.main(), new(specs.Process), func() {})
		p.pid = 1 << 21
		if !ended.IsZero() {
			p.ended(137, ended, 0)
		}
		s.processes[id] = p
	}
	begun := time.Unix(1, 0)
	add("", begun) // the init
	for i := range 10_000 {
		add(fmt.Sprintf("%s-%06d", strings.Repeat("e", 80), i), begun.Add(time.Duration(i)*time.Second))
	}
	for i := range 100 {
		add(fmt.Sprintf("runs-%d", i), time.Time{})
	}
	pids := make(map[uint32]bool)
	for i := range maxPids {
		pids[uint32(1<<20+i)] = true
	}
	for name, r := range map[string]struct {
		size int
		list []*agentv1.Process
	}{
		"restored": {len((&agentv1.RestoredResponse{BootId: strings.Repeat("b", 40), Processes: s.list("", listMax)}).
			AppendTo(nil)), s.list("", listMax)},
		"processes": {len(s.answer("", pids).AppendTo(nil)), s.answer("", pids).Processes},
	} {
		if r.size > hostTakes || r.size < hostTakes/2 {
			t.Errorf("%s: %d bytes", name, r.size)
		}
		has := func(id string) bool {
			return slices.ContainsFunc(r.list, func(p *agentv1.Process) bool { return p.Id == id })
		}
		last, first := fmt.Sprintf("%s-%06d", strings.Repeat("e", 80), 9999), strings.Repeat("e", 80)+"-000000"
		if !has("") || !has("runs-0") || !has("runs-99") || !has(last) || has(first) {
			t.Errorf("%s: init %t, what runs %t and %t, the last that ended %t, the first %t", name, has(""), has("runs-0"),
				has("runs-99"), has(last), has(first))
		}
	}
	delete(s.processes, "")
	if a := s.answer("none", pids); len(a.AppendTo(nil)) > hostTakes || len(a.Others) < 1000 || len(a.Processes) > 0 {
		t.Errorf("%d others in %d bytes", len(a.Others), len(a.AppendTo(nil)))
	}
}
