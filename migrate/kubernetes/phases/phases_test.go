package phases_test

import (
	"testing"

	"godwit.dev/godwit/migrate/kubernetes/phases"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Each phase and kind that a record can have has its own name in the API.
func TestEachHasAName(t *testing.T) {
	seen := map[string]bool{}
	for number, name := range nodev1.Phase_name {
		said := string(phases.Records[nodev1.Phase(number)])
		if (said == "") != (number == 0) || seen[said] {
			t.Errorf("%s is called %q", name, said)
		}
		seen[said] = true
	}
	for number, name := range nodev1.Kind_name {
		if said := string(phases.Kinds[nodev1.Kind(number)]); (said == "") != (number == 0) || number != 0 && seen[said] {
			t.Errorf("%s is called %q", name, said)
		}
	}
}
