package process

import (
	"bytes"
	"os"
	"testing"
)

// What doctor tries is what a start does, the seal too, and leaves the program's own files alone.
func TestSealsAnyRoot(t *testing.T) {
	needRoot(t)
	before, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	if err := Confinable(user, ""); err != nil {
		t.Error(err)
	}
	if after, err := os.ReadFile("/proc/self/mountinfo"); err != nil || !bytes.Equal(after, before) {
		t.Errorf("the program's mounts have changed: %v\n%s\n%s", err, before, after)
	}
}
