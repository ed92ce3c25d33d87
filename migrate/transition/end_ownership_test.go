package transition_test

import (
	"testing"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"

	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// A claim of which its node finds nothing is given up in two writes: the first one is seen by a Start,
// and the second one counts only for the version that the node has looked under. A new claim ends it.
func TestDisownOfWhatIsMissing(t *testing.T) {
	owned := &nodev1.Record{Vm: vm, Uid: "u", Owner: &nodev1.Owner{Node: "n1"}, Generation: gen, Version: 4}
	req := &nodev1.DisownRequest{Vm: vm, Node: "n1", Generation: gen, Uid: "u", Missing: true}
	said, err := transition.EndOwnership(transition.State{Record: owned}, req)
	if err != nil || !said.Record.GetMissing() || said.Record.GetOwner().GetNode() != "n1" ||
		said.Record.GetGeneration() != gen {
		t.Fatalf("%v, %v", said.Record, err)
	}
	now := proto.CloneOf(said.Record)
	now.Version = 5
	if again, err := transition.EndOwnership(transition.State{Record: now}, req); err != nil || again.Record != now {
		t.Errorf("said twice: %v, %v", again.Record, err)
	}
	late := &nodev1.DisownRequest{Vm: vm, Node: "n1", Generation: gen, Uid: "u", Version: 4}
	if _, err := transition.EndOwnership(transition.State{Record: now}, late); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("a look under version 4: %v", err)
	}
	late.Version = 5
	if c, err := transition.EndOwnership(transition.State{Record: now}, late); err != nil || c.Record.GetOwner() != nil ||
		c.Record.GetMissing() {
		t.Errorf("a look under version 5: %v, %v", c.Record, err)
	}
	c, err := transition.Own(transition.State{Record: now}, &nodev1.OwnRequest{Vm: vm, Node: "n1", Generation: gen,
		Uid: "u"})
	if err != nil || c.Record.GetMissing() || c.Record.GetGeneration() != gen+1 {
		t.Errorf("claimed anew: %v, %v", c.Record, err)
	}
}
