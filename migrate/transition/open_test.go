package transition_test

import (
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// An operation that was ordered of a VM is not opened on another one that has its name by now, whatever generation that
// has. A known one is answered all the same.
func TestOpenOfAnotherVM(t *testing.T) {
	op := operation(nodev1.Kind_KIND_HIBERNATE, 0)
	op.Digest = ""
	s := transition.State{Record: &nodev1.Record{Vm: vm, Uid: "uid", Version: 3, Generation: gen,
		Owner: &nodev1.Owner{Node: "n1"}}}
	req := &nodev1.OpenRequest{Vm: vm, Operation: op, Uid: "another"}
	_, err := transition.Open(s, req, now)
	if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "uid") {
		t.Errorf("another VM: %v", err)
	}
	req.Uid = "uid"
	c, err := transition.Open(s, req, now)
	if err != nil {
		t.Fatal(err)
	}
	req.Uid = "another"
	s.Named = c.Record.GetOperation()
	if again, err := transition.Open(s, req, now); err != nil || again.Record != s.Record {
		t.Errorf("a known one: %v", err)
	}
}
