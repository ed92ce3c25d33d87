package shim

import "testing"

// A container image may not spoof, unless the node's configuration says so for all. What was chosen
// is in the journal, with the owner of the tap, before anything is attached.
func TestSpoofOfAnImage(t *testing.T) {
	for key, want := range map[string]string{"": "deny", "allow": "allow", "deny": "deny"} {
		w := newWorld(t)
		w.cfg.Network.Spoof = key
		attached := false
		w.at("attach network", func() error {
			attached = true
			links := w.journal().Links
			if len(links) != 1 || links[0].Spoof != want || links[0].Owner == "" {
				t.Errorf("network.spoof %q: the journal has %+v", key, links)
			}
			return nil
		})
		w.running()
		if !attached {
			t.Error("nothing was attached")
		}
	}
}

// A VM disk may spoof, unless the node's configuration forbids it for all.
func TestSpoofOfAVMDisk(t *testing.T) {
	for key, want := range map[string]string{"": "allow", "allow": "allow", "deny": "deny"} {
		w, output := diskWorld(t)
		w.cfg.Network.Spoof = key
		w.must("create", w.createDisk(output))
		vm, err := w.service.current()
		w.must("find VM", err)
		if got := (&starting{vm: vm}).allowedSources(); got != want {
			t.Errorf("network.spoof %q: %s", key, got)
		}
	}
}
