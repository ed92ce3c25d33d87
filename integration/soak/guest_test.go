package soak

import (
	"strings"
	"testing"
	"time"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/integration/images"
)

const one, two = "1111111111111111aa", "2222222222222222bb"

func listener() *guest {
	return &guest{name: "vm", heard: map[string]sighting{}, retired: map[string]time.Time{}}
}

func (g *guest) told(nonce string, counters ...uint64) {
	for _, c := range counters {
		g.noteBeacon(images.Beacon{Nonce: nonce, Counter: c}, "10.0.0.1", time.Now())
	}
}

// A counter that comes twice, or after a larger one, is a second runner; gaps are none.
func TestSecondRunnerIsHeard(t *testing.T) {
	for name, c := range map[string]struct {
		counters []uint64
		wrong    int
	}{"alone": {[]uint64{1, 2, 9}, 0}, "twice": {[]uint64{1, 2, 2}, 1}, "older": {[]uint64{5, 6, 3, 7}, 1}} {
		g := listener()
		g.told(one, c.counters...)
		if wrong := g.blames(); len(wrong) != c.wrong {
			t.Errorf("%s: %q", name, wrong)
		}
	}
}

// A VM that was removed and is heard long after that is told once.
func TestRemovedVMIsHeard(t *testing.T) {
	g := listener()
	g.told(one, 1)
	g.known()
	g.retire()
	g.told(one, 2)
	if wrong := g.blames(); len(wrong) != 0 {
		t.Errorf("what was on its way: %q", wrong)
	}
	g.retired[one] = time.Now().Add(-time.Minute)
	g.told(one, 3, 4)
	if wrong := g.blames(); len(wrong) != 1 || !strings.Contains(wrong[0], "removed") {
		t.Errorf("%q", wrong)
	}
}

// A VM is taken for the one that was ordered if a run was, and else for a stranger.
func TestStrangers(t *testing.T) {
	g := listener()
	g.told(one, 1)
	if strangers := g.known(); len(strangers) != 1 {
		t.Errorf("nobody ordered it: %q", strangers)
	}
	g.set(func() { g.tried = true })
	if strangers := g.known(); len(strangers) != 0 || g.vm() != one {
		t.Errorf("it was ordered: %q, %q", strangers, g.vm())
	}
	g.told(two, 1)
	if strangers := g.known(); len(strangers) != 1 || strangers[0] != two[:8] {
		t.Errorf("another one runs in its place: %q", strangers)
	}
}

// A VM that was ordered to begin anew has another nonce, once for each order. The VM that it was may be heard no more.
func TestGuestBeginsAnew(t *testing.T) {
	g := listener()
	g.set(func() { g.tried = true })
	g.told(one, 1)
	g.known()
	g.set(func() { g.begins++ })
	if strangers := g.known(); len(strangers) != 0 || g.vm() != one || !g.beginning() {
		t.Errorf("it has not begun yet: %q, %q", strangers, g.vm())
	}
	g.told(two, 1)
	if strangers := g.known(); len(strangers) != 0 || g.vm() != two || g.beginning() {
		t.Errorf("it has begun anew: %q, %q", strangers, g.vm())
	}
	g.told("3333333333333333cc", 1)
	if strangers := g.known(); len(strangers) != 1 {
		t.Errorf("nobody ordered a third one: %q", strangers)
	}
	g.retired[one] = time.Now().Add(-time.Minute)
	if g.told(one, 2); len(g.blames()) != 1 {
		t.Error("the VM that it was runs on, and nothing is wrong")
	}
}

// A VM whose process died at a node that did not own it is excused by a loss that its record tells. It is excused also
// where that node has it since. It is not where its owner was left alone.
func TestSparedOwner(t *testing.T) {
	owned := func(node string) *nodev1.Record { return &nodev1.Record{Owner: &nodev1.Owner{Node: node}} }
	told := owned("a")
	told.Lost = "sha256:0"
	g := &guest{}
	g.excuse("step 1 killed its VMM on node b")
	if g.ownerUntouched(owned("a")) {
		t.Error("nobody has said that the owner is another node")
	}
	g.away = "b"
	if !g.ownerUntouched(owned("a")) || g.ownerUntouched(owned("b")) || g.ownerUntouched(told) ||
		g.ownerUntouched(&nodev1.Record{}) {
		t.Error("the owner a was left alone, and the others were not")
	}
	if g.excuse("task kill"); g.ownerUntouched(owned("a")) {
		t.Error("the VM was killed since")
	}
}
