package authority

import (
	"context"
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"godwit.dev/godwit/migrate/kubernetes/store"
	recordstore "godwit.dev/godwit/migrate/store"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

var errUnread = errors.New("no answer")

// known is what the API server and the records say, or do not answer.
type known struct {
	client.Reader
	node                           *corev1.Node // nil: there is none
	noted                          store.Machine
	held                           []*nodev1.Record
	noNode, noNote, noFind, noSave bool
	saved                          *store.Machine
}

func (k *known) Get(_ context.Context, key client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	switch {
	case k.noNode:
		return errUnread
	case k.node == nil:
		return apierrors.NewNotFound(schema.GroupResource{Resource: "nodes"}, key.Name)
	}
	k.node.DeepCopyInto(o.(*corev1.Node))
	return nil
}

func (k *known) Machine(context.Context, string) (store.Machine, error) {
	if k.noNote {
		return store.Machine{}, errUnread
	}
	return k.noted, nil
}

func (k *known) SetMachine(_ context.Context, _ string, m store.Machine) error {
	if k.noSave {
		return errUnread
	}
	k.saved = &m
	return nil
}

func (k *known) Find(context.Context, recordstore.Which) (recordstore.Found, error) {
	if k.noFind {
		return recordstore.Found{}, errUnread
	}
	return recordstore.Found{Records: k.held}, nil
}

// What is not read is an error: nothing is signed, denied or noted then. A Node that is not the one of the token says
// nothing of who asks.
func TestReplaced(t *testing.T) {
	noted := store.Machine{UID: "1", SystemUUID: "s", MachineID: "m"}
	node := func(uid types.UID, system, machine string) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: uid},
			Status: corev1.NodeStatus{NodeInfo: corev1.NodeSystemInfo{SystemUUID: system, MachineID: machine}}}
	}
	held := []*nodev1.Record{{Uid: "u"}}
	for name, c := range map[string]struct {
		known   known
		machine string // of the token; empty: 2
		failed  bool
		reason  string
		saved   string // uid that is noted
	}{
		"the first one ever":        {known: known{node: node("2", "s", "m")}, saved: "2"},
		"the same":                  {known: known{noted: noted, node: node("1", "s", "m")}, machine: "1"},
		"the same, its ids are new": {known: known{noted: noted, node: node("1", "s2", "m")}, machine: "1", saved: "1"},
		"the same, silent now":      {known: known{noted: noted, node: node("1", "", "")}, machine: "1"},
		"the same, with VMs":        {known: known{noted: noted, node: node("2", "s", "m"), held: held}, saved: "2"},
		"another":                   {known: known{noted: noted, node: node("2", "s2", "m2")}, saved: "2"},
		"another, with VMs": {known: known{noted: noted, node: node("2", "s2", "m2"), held: held},
			reason: madeAgain},
		"a silent one, with VMs":     {known: known{noted: noted, node: node("2", "", ""), held: held}, reason: madeAgain},
		"the Node is gone":           {known: known{noted: noted}, reason: notThisNode},
		"the Node is a third one":    {known: known{noted: noted, node: node("3", "s", "m")}, reason: notThisNode},
		"a token of before":          {known: known{noted: noted, node: node("3", "s", "m")}, machine: "1"},
		"a token of before, no Node": {known: known{noted: noted}, machine: "1"},
		"the note is not read":       {known: known{noNote: true, node: node("2", "s", "m")}, failed: true},
		"the Node is not read":       {known: known{noted: noted, noNode: true}, failed: true},
		"the records are not read":   {known: known{noted: noted, node: node("2", "", ""), noFind: true}, failed: true},
		"it is not noted":            {known: known{noted: noted, node: node("2", "s", "m"), noSave: true}, failed: true},
	} {
		if c.machine == "" {
			c.machine = "2"
		}
		s := &signer{current: &c.known, records: &c.known}
		denied, reason, err := s.replaced(t.Context(), verdict{node: "a", machine: c.machine})
		if errors.Is(err, errUnread) != c.failed || !c.failed && (reason != c.reason || (denied != "") != (c.reason != "")) {
			t.Errorf("%s: denied %q (%s), want %q: %v", name, denied, reason, c.reason, err)
		}
		saved := ""
		if c.known.saved != nil {
			saved = c.known.saved.UID
		}
		if saved != c.saved {
			t.Errorf("%s: uid %q is noted, want %q", name, saved, c.saved)
		}
	}
}

// The refusal is an event too, and one may have 1024 bytes: whatever a kubelet calls itself, the label is in it.
func TestRefusalIsAnEvent(t *testing.T) {
	long := strings.Repeat("\u00fc\n", 2000)
	m := store.Machine{UID: strings.Repeat("1", 36), SystemUUID: long, MachineID: long}
	text := refusal(strings.Repeat("n", 63), m, m, 1)
	if cut := text[:1000]; !strings.Contains(cut, LabelReplaces) {
		t.Errorf("the label is left out of %s", cut)
	}
}
