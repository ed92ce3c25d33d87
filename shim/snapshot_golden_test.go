package shim

import (
	"testing"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	"godwit.dev/godwit/shim/journal"
)

// While a golden snapshot is made of a VM, no record has its operation. Its shim does not tell of it: a controller that
// looked at the VM in this moment ended the capture.
func TestGoldenIsNoOperation(t *testing.T) {
	for name, golden := range map[string]*machinev1.Golden{
		"a golden snapshot": {Image: "sha256:" + hexDigest}, "a hibernate": nil,
	} {
		w := newWorld(t).running()
		w.store.block = make(chan struct{})
		done := make(chan error, 1)
		go func() {
			_, err := w.machineService().Capture(t.Context(), &machinev1.CaptureRequest{Ref: w.ref(), Repository: "r",
				Tag: "t", Make: golden})
			done <- err
		}()
		vm, _ := w.service.current()
		if !eventually(func() bool { return vm.journal.Load().Phase == journal.Sending && !w.machine.running() }) {
			t.Fatal("capture does not begin")
		}
		q, err := w.machineService().Query(t.Context(), &machinev1.QueryRequest{})
		w.must("query", err)
		if told := q.GetRef() != nil && q.GetRecord() == string(journal.Sending); told != (golden == nil) {
			t.Errorf("during %s the shim tells of %v, record %s", name, q.GetRef(), q.GetRecord())
		}
		_, err = w.machineService().Abort(t.Context(), &machinev1.AbortRequest{Ref: w.ref()})
		w.must("abort", err)
		<-done
	}
}
