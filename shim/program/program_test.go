package program

import (
	"os"
	"path/filepath"
	"testing"
)

// The binary in the same directory is run, and one of PATH only if there is none.
func TestPath(t *testing.T) {
	dir := t.TempDir()
	if got := in(dir); got != Name {
		t.Errorf("without one in the directory it is %s", got)
	}
	loop := filepath.Join(dir, "loop")
	if err := os.Symlink("loop", loop); err != nil {
		t.Fatal(err)
	}
	if got := in(loop); got != filepath.Join(loop, Name) {
		t.Errorf("where nobody can look it is %s", got)
	}
}
