package soak

import (
	"errors"
	"testing"

	"godwit.dev/godwit/integration/harness"
)

// Each mutation has its place in the sources as they are now.
func TestMutationsFit(t *testing.T) {
	root, err := harness.Root()
	if err != nil {
		t.Fatal(err)
	}
	for name := range mutations {
		if err := (replacements{}).mutate(root, t.TempDir(), name); err != nil {
			t.Error(err)
		}
	}
	if err := (replacements{}).mutate(root, t.TempDir(), "none"); !errors.Is(err, ErrNoMutation) {
		t.Errorf("a mutation that is not there: %v", err)
	}
}
