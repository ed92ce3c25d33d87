package shim

import (
	"maps"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/spec"
)

// TestPodKeepsItsAddresses: a pod that keeps its addresses comes to no network that gives it others. It is refused
// before anything of it is sent, and who ordered the move hears why. The annotation is that of the pod that waits.
func TestPodKeepsItsAddresses(t *testing.T) {
	const other = "10.9.9.9/24"
	for name, c := range map[string]struct{ keeps, elsewhere, comes bool }{
		"it keeps them, and has them":       {true, false, true},
		"it keeps them, and has others":     {true, true, false},
		"it has others, and need keep none": {false, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			w := movingPod(t, nil)
			if w.podNotes = maps.Clone(w.podNotes); c.keeps {
				w.podNotes[spec.AnnotationNetwork] = spec.NetworkKeep
			}
			if c.elsewhere {
				w.links[0].NIC.Addresses = []netip.Prefix{netip.MustParsePrefix(other)}
			}
			err := w.armed("setup", "web", "log") // of one that is refused, at any of these calls
			if c.comes {
				w.must("arm", err)
				w.must("move", w.moved())
				return
			}
			for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
				missing, err := w.missing(w.stream.GetSpec())
				if errdefs.IsFailedPrecondition(err) {
					for _, text := range []string{other, spec.AnnotationNetwork} {
						if !strings.Contains(err.Error(), text) {
							t.Errorf("the refusal lacks %s: %v", text, err)
						}
					}
					break
				}
				if time.Now().After(end) {
					t.Fatalf("it waits for %v: %v", missing, err)
				}
			}
			if w.machine != nil {
				t.Error("its VMM was started")
			}
		})
	}
}
