package tasks

import (
	"testing"

	"github.com/containerd/containerd/v2/pkg/filters"
)

// Containers of makers that are gone are found by the label of this release and by that of the one
// before, and no others.
func TestMarks(t *testing.T) {
	filter, err := filters.ParseAll(marks()...)
	if err != nil {
		t.Fatal(err)
	}
	for label, want := range map[string]bool{"godwit.dev/template": true, "godwit.dev/golden": true,
		"godwit.dev/stopped": false} {
		got := filter.Match(filters.AdapterFunc(func(path []string) (string, bool) {
			return "true", len(path) == 2 && path[0] == "labels" && path[1] == label
		}))
		if got != want {
			t.Errorf("%s: found %v", label, got)
		}
	}
}

// A container that a user has made of an image with the label is no maker's: its id says so.
func TestALabelOfAnImageIsNoMakers(t *testing.T) {
	for id, want := range map[string]bool{
		MakerID(): true, "template-0a1b2c3d": true, "golden-0a1b2c3d": true,
		"web": false, "template-web": false, "template-0a1b2c3d4": false, "my-golden-0a1b2c3d": false,
	} {
		if madeID.MatchString(id) != want {
			t.Errorf("%s: swept %v", id, !want)
		}
	}
}
