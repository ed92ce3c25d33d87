package shim

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/shim/journal"
)

// A guest answers no call that removes a container which had ended, of which it has several. An operation gets the VM
// within the time that it waits, whenever it is ordered.
func TestLeftContainersOfAGuestThatHangs(t *testing.T) {
	for _, left := range []int{1, 2, 5} {
		synctest.Test(t, func(t *testing.T) {
			a := newFakeAgent(&faults{})
			a.hang("remove container")
			vm := bareVM(t, a)
			of := &spec.Pod{}
			for n := range left {
				of.Containers = append(of.Containers, spec.Member{Guest: fmt.Sprintf("c%d", n), Name: fmt.Sprint(n)})
			}
			vm.journal.Begin(t.TempDir(), &journal.Journal{Resources: journal.Resources{Spec: &spec.Spec{Pod: of}}})
			vm.mu.Lock()
			vm.state = Running
			vm.mu.Unlock()
			go vm.pod.settle(vm.life)
			for order := range 100 {
				err := whileBusy(t.Context(), func() error {
					vm.mu.Lock()
					defer vm.mu.Unlock()
					if vm.op.calls > 0 {
						return errBusy
					}
					return vm.pod.removals.over()
				})
				if errors.Is(err, errBusy) {
					t.Fatalf("%d left, order %d after %v: %v", left, order, time.Duration(order)*1700*time.Millisecond, err)
				}
				time.Sleep(1700 * time.Millisecond)
			}
		})
	}
}
