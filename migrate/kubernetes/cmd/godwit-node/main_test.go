package main

import (
	"strings"
	"testing"
)

// A node without a name would take no orders, unsaid.
func TestNodeNeedsAName(t *testing.T) {
	t.Setenv("GODWIT_CONFIG", "")
	if err := run(t.Context(), "", "none", "", "default"); err == nil || !strings.Contains(err.Error(), "--node") {
		t.Errorf("%v", err)
	}
}
