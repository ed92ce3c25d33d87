package snapshot

import (
	"strings"
	"testing"
)

// Each part of a Ref has its length and its characters.
func TestRef(t *testing.T) {
	long := func(n int) string { return strings.Repeat("a", n) }
	for _, c := range []struct {
		change func(*Ref)
		ok     bool
	}{
		{func(r *Ref) {}, true},
		{func(r *Ref) { r.VM = long(128) + "/" + long(128) }, true},
		{func(r *Ref) { r.VM = long(129) + "/a" }, false},
		{func(r *Ref) { r.VM = "a/" + long(129) }, false},
		{func(r *Ref) { r.VM = "a" }, false},
		{func(r *Ref) { r.VM = "a/" }, false},
		{func(r *Ref) { r.VM = "/a" }, false},
		{func(r *Ref) { r.VM = "a/b/c" }, false},
		{func(r *Ref) { r.VM = "a/.b" }, false},
		{func(r *Ref) { r.VM = "a/b\n" }, false},
		{func(r *Ref) { r.UID = long(128) }, true},
		{func(r *Ref) { r.UID = long(129) }, false},
		{func(r *Ref) { r.UID = "A" }, false},
		{func(r *Ref) { r.Operation = long(100) }, true},
		{func(r *Ref) { r.Operation = long(101) }, false},
		{func(r *Ref) { r.Operation = "" }, false},
		{func(r *Ref) { r.Operation = "../x" }, false},
	} {
		r := Ref{VM: "default/vm1", UID: "uid1", Operation: "op1"}
		c.change(&r)
		if err := r.Validate(); (err == nil) != c.ok {
			t.Errorf("%+v: %v, want ok %t", r, err, c.ok)
		}
	}
}
