package main

import (
	"os"
	"path/filepath"
	"testing"
)

// TestLeases: an address is given once, unless somebody asks for it. It is free when the last one has given it back.
func TestLeases(t *testing.T) {
	l := leases(t.TempDir())
	take := func(container string, asked ...string) string {
		t.Helper()
		address, err := l.take(container, asked)
		if err != nil {
			t.Fatal(err)
		}
		return address
	}
	back := func(container string) {
		t.Helper()
		if err := l.giveBack(container); err != nil {
			t.Fatal(err)
		}
	}
	one, two := take("c1"), take("c2")
	if one == two || take("c3", one) != one {
		t.Errorf("given are %s and %s", one, two)
	}
	back("c1")
	if got := take("c4"); got == one {
		t.Errorf("%s is given while c3 has it", got)
	}
	back("c3")
	back("c3")
	if got := take("c5"); got != one {
		t.Errorf("%s was given back, and %s is given", one, got)
	}
	if err := os.WriteFile(filepath.Join(string(l), "deaf"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := take("c6", one); got == one {
		t.Errorf("%s is given to who asks, against the order", got)
	}
	if _, err := l.take("c7", []string{"x"}); err != nil {
		t.Errorf("what is asked for is not looked at: %v", err)
	}
}
