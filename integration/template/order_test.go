//go:build integration

package template

import (
	"encoding/json"
	"strings"
	"testing"
)

// A template is made by order before any VM of its shape was started. It is listed, used by the
// first VM and deleted. What a node cannot do is refused by name, and nothing changes.
func TestOrdered(t *testing.T) {
	n := nodeWith(t, "[template]\nafter = 1000\n") // by the name of the release before
	var made struct {
		Template struct{ Name, Kind string }
		Existed  bool
	}
	order := []string{"template", "make", "-o", "json", "--boot", "--nics", "0"}
	for _, existed := range []bool{false, true} {
		if err := json.Unmarshal([]byte(n.Godwit(t, order...)), &made); err != nil {
			t.Fatal(err)
		}
		if made.Existed != existed || made.Template.Kind != "boot" {
			t.Errorf("made: %+v", made)
		}
	}
	t.Logf("\n%s", n.Godwit(t, "template", "ls"))
	n.run(t, "first", "true")
	n.is(t, "clone")
	for args, says := range map[string]string{
		"template push --boot " + made.Template.Name + " reg/vms": "stays on its disk",
		"template rm " + strings.Repeat("0", 32):                  "godwit template ls",
		"template make --boot --memory 65MiB":                     "memory: 65MiB is not a multiple of 2MiB",
		"template make --boot --vmm xen":                          "vmm",
	} {
		if out, err := n.RunGodwit(t.Context(), strings.Fields(args)...); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %s, %v", args, out, err)
		}
	}
	t.Logf("\n%s", n.Godwit(t, "template", "rm", made.Template.Name))
	if list := n.Godwit(t, "template", "ls", "--boot"); strings.Contains(list, made.Template.Name) {
		t.Errorf("template ls after template rm:\n%s", list)
	}
	n.run(t, "second", "true")
	n.is(t, "boot")
}
