//go:build integration

package qemu

import (
	"testing"

	"godwit.dev/godwit/vmm/vmmtest"
)

// TestHugePages: RAM on a hugetlbfs is copied, and goes on elsewhere. A host that has no
// memory for the pages leaves it out, by name.
func TestHugePages(t *testing.T) {
	env := realEnv(t, Driver{})
	env.Memory = 128 << 20
	dir := t.TempDir()
	undo, err := vmmtest.MountHuge(dir, 2*env.Memory)
	if err != nil {
		t.Skip("NOT RUN: no huge pages:", err)
	}
	defer func() {
		if err := undo(); err != nil {
			t.Error(err)
		}
	}()
	env.Huge = dir
	for _, c := range vmmtest.Clauses() {
		if c.Name == vmmtest.Elsewhere {
			if err := c.Check(t.Context(), env); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestFullPool: a tmpfs that runs full ends the VM, and nothing stays.
func TestFullPool(t *testing.T) {
	if err := vmmtest.FullPool(t.Context(), realEnv(t, Driver{})); err != nil {
		t.Fatal(err)
	}
}
