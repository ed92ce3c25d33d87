package process

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestRotate: what a guest can make a VMM say takes a bound of disk.
func TestRotate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	long := strings.Repeat("a", MaxLog) + "the end"
	for text, want := range map[string]string{"short": "", long: long[7:]} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(path + ".1"); err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		if err := rotate(path); err != nil {
			t.Fatal(err)
		}
		kept, _ := os.ReadFile(path + ".1")
		now, err := os.ReadFile(path)
		if err != nil || string(kept) != want || want == "" && string(now) != text || want != "" && len(now) > 0 {
			t.Errorf("log of %d bytes: %d are kept aside, %d stay (%v)", len(text), len(kept), len(now), err)
		}
	}
}
