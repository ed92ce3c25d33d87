package qemu

import (
	"testing"

	"godwit.dev/godwit/vmm/process"
)

// A QEMU that could not raise SIGBUS at itself, being process 1, counts as killed by it. One
// that ends by SIGSEGV for another reason does not.
func TestSIGBUSOfProcessOne(t *testing.T) {
	for _, c := range []struct {
		status int
		log    string
		want   string
	}{
		{139, "Failed to re-raise SIGBUS!: Success", process.NoRoom},
		{139, "something else", "VMM killed by a signal"},
		{135, "", process.NoRoom},
	} {
		if exit := exitOf("", exitStatus(c.status, c.log)); exit.Reason != c.want {
			t.Errorf("status %d, %q: %+v", c.status, c.log, exit)
		}
	}
}
