package shim

import (
	"testing"

	"godwit.dev/godwit/network"
	"godwit.dev/godwit/shim/journal"
)

// A live move whose destination has other interfaces than the VM can use ends there before a
// page comes: it is fenced, the VMM is not even started, and nothing stays. (There is nothing to
// compare of queues: a tap has one, which godwit itself makes.)
func TestArrivalWantsTheNetwork(t *testing.T) {
	for name, change := range map[string]func([]network.Link) []network.Link{
		"a smaller MTU": func(l []network.Link) []network.Link { l[0].Found.MTU = 1400; return l },
		"no interface":  func([]network.Link) []network.Link { return nil },
		"as it was":     func(l []network.Link) []network.Link { return l },
		"a larger MTU":  func(l []network.Link) []network.Link { l[0].Found.MTU = 9000; return l },
	} {
		t.Run(name, func(t *testing.T) {
			w := coming(t)
			w.links = change(w.links)
			fits := name == "as it was" || name == "a larger MTU"
			w.must("create", w.receive())
			w.connect()
			if w.arrived() != fits {
				t.Fatalf("journal %s", w.phase())
			}
			if fits {
				w.must("kill", w.kill("", 9))
			} else if w.machine != nil || w.phase() != journal.Fenced {
				t.Errorf("journal %s, VMM %v", w.phase(), w.machine)
			}
			if status := w.wait(""); status != killed {
				t.Errorf("exit status %d", status)
			}
			w.must("delete", w.delete())
			w.nothingLeft()
		})
	}
}
