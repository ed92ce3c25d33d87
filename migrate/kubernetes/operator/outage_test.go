package operator

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/decide"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

func orderTo(node string) decide.Operation {
	return decide.Operation{Object: &v1alpha1.VMOperation{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "order"}},
		Record: &nodev1.Record{Owner: &nodev1.Owner{Node: node}}}
}

// An order whose node is away is given again the later the longer that lasts. Another node that has the VM is asked at
// once, and an order that was given is forgotten.
func TestOrderOfANodeThatIsAwayForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, o, order := operations{outages: &outages{}}, orderTo("a"), decide.Action{Do: decide.Order}
		away := fmt.Errorf("node a has not been heard lately: %w", errdefs.ErrUnavailable)
		tries, last := 0, time.Duration(0)
		for begun := time.Now(); time.Since(begun) < time.Hour; tries++ {
			next, err := r.outcome(o, order, away)
			if err != nil || next.Do != decide.None || next.Waits != decide.ReasonOperation || next.Message != away.Error() ||
				next.After < last {
				t.Fatalf("after %v: %+v, %v", time.Since(begun), next, err)
			}
			if last = next.After; r.outages.left(o, time.Now()) != last {
				t.Fatalf("it may be given in %v, and is in %v", r.outages.left(o, time.Now()), last)
			}
			time.Sleep(last)
			if left := r.outages.left(o, time.Now()); left != 0 {
				t.Fatalf("it is due, and waits %v", left)
			}
		}
		if last != outageMost || tries > 40 {
			t.Errorf("in an hour it was given %d times, the last time after %v", tries, last)
		}
		_, _ = r.outcome(o, order, away)
		if left := r.outages.left(orderTo("b"), time.Now()); left != 0 {
			t.Errorf("another node has the VM, and the order waits %v", left)
		}
		if next, _ := r.outcome(orderTo("b"), order, away); next.After != outageFirst {
			t.Errorf("another node is away, and the order waits %v", next.After)
		}
		if _, err := r.outcome(o, order, nil); err != nil || len(r.outages.orders) != 0 {
			t.Errorf("it was given: %v, %v", err, r.outages.orders)
		}
	})
}

// An order that a node takes soon says nothing. One that it cannot take for want of room or of records says so.
func TestOrderThatIsNotTaken(t *testing.T) {
	for name, test := range map[string]struct {
		err     error
		says    bool
		refused bool
	}{
		"its turn comes":   {fmt.Errorf("node a: %w", ErrTurn), false, false},
		"the disk is full": {fmt.Errorf("the disk of the node is full: %w", errdefs.ErrResourceExhausted), true, false},
		"it is away":       {errdefs.ErrUnavailable, true, false},
		"another is open": {&record.HeldError{Call: "hibernate", Record: &nodev1.Record{
			Operation: &nodev1.Operation{Id: "c"}}}, true, false},
		"another node has it": {&record.HeldError{Call: "hibernate", Record: &nodev1.Record{}}, true, true},
		"the engine refuses":  {errdefs.ErrFailedPrecondition, true, true},
	} {
		r := operations{outages: &outages{}}
		next, err := r.outcome(orderTo("a"), decide.Action{Do: decide.Order}, test.err)
		if err != nil || (next.Message == test.err.Error()) != test.says || next.Refused != test.refused ||
			next.Refused == (next.After > 0) {
			t.Errorf("%s: %+v, %v", name, next, err)
		}
	}
	r := operations{outages: &outages{}}
	if _, err := r.outcome(orderTo("a"), decide.Action{Do: decide.Order}, errdefs.ErrDataLoss); !errdefs.IsDataLoss(err) {
		t.Errorf("what the engine cannot say anything of: %v", err)
	}
}

// A node says for ever that an operation holds the VM which no record has: nothing tells of its end. The order is given
// ever later. That of an operation of the record is given soon.
func TestOrderThatIsHeldForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		held := func(id string) error {
			return &record.HeldError{Call: "hibernate", Record: &nodev1.Record{Operation: &nodev1.Operation{Id: id}}}
		}
		r, o, order := operations{outages: &outages{}}, orderTo("a"), decide.Action{Do: decide.Order}
		tries, last := 0, time.Duration(0)
		for begun := time.Now(); time.Since(begun) < time.Hour; tries++ {
			next, err := r.outcome(o, order, held("none"))
			if err != nil || next.Do != decide.None || next.Waits != decide.ReasonOperation || next.After < last {
				t.Fatalf("after %v: %+v, %v", time.Since(begun), next, err)
			}
			last = next.After
			time.Sleep(last)
		}
		if last != outageMost || tries > 40 {
			t.Errorf("in an hour it was given %d times, the last time after %v", tries, last)
		}
		o.Record.Operation = &nodev1.Operation{Id: "c"}
		if next, err := r.outcome(o, order, held("c")); err != nil || next.After != again ||
			r.outages.left(o, time.Now()) != 0 {
			t.Errorf("%+v, %v", next, err)
		}
	})
}
