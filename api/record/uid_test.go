package record

import (
	"strings"
	"testing"
)

func TestIsUID(t *testing.T) {
	const id = "8c1b2a3e-0000-4000-8000-000000000001"
	for name, want := range map[string]bool{
		id: true, id + ".main": true, id + ".a-1": true, id + "." + strings.Repeat("m", 63): true,
		"": false, "golden": false, "web": false, id + ".": false, id + ".a.b": true, id + ".a..b": false, id + ".a.": false,
		id + ".A": false, id + ".a/b": false,
		id + ".." + "x": false, ".main": false, "web.main": false, id + "." + strings.Repeat("m", 64): false,
		id + ".tmp~": false, "x" + id: false,
	} {
		if got := IsUID(name); got != want {
			t.Errorf("%q: %t", name, got)
		}
	}
}
