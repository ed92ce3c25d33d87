package agentd

import (
	"fmt"
	"testing"

	"github.com/containerd/errdefs"

	agentv1 "godwit.dev/godwit/api/agent/lean"
)

// An AddContainer that comes after its container was removed makes none: the host has given it up. So it is where the
// removal came first.
func TestRemoveContainerBeforeItComes(t *testing.T) {
	s := barring()
	s.pod.Store(&pod{pause: &process{done: make(chan struct{})}})
	remove := func(id string) error {
		_, err := s.RemoveContainer(t.Context(), &agentv1.RemoveContainerRequest{Container: id})
		return err
	}
	for range 2 {
		if err := remove("c1"); !errdefs.IsNotFound(err) {
			t.Errorf("remove a container that has not come: %v", err)
		}
	}
	if _, err := s.register("c1", &order{setup: &agentv1.SetupRequest{}}); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("a container was made that had been removed: %v", err)
	}
	if _, err := s.register("c2", &order{setup: &agentv1.SetupRequest{}}); err != nil {
		t.Errorf("add another container: %v", err)
	}
	for i := range 2 * removedMax {
		if err := remove(fmt.Sprintf("d%d", i)); !errdefs.IsNotFound(err) {
			t.Fatal(err)
		}
	}
	if len(s.removed) != removedMax {
		t.Errorf("%d ids are kept", len(s.removed))
	}
}
