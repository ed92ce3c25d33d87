//go:build integration

package shim

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// TestUsers: each VM's RAM is another user's, whom its VMM is; the user of one that
// has gone is the next one's.
func TestUsers(t *testing.T) {
	dir := t.TempDir()
	const first = 0x70000000
	reserve := func(name string, want int) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := reserveRAM(path, 4096, first); err != nil {
			t.Fatal(err)
		}
		var st syscall.Stat_t
		if err := syscall.Stat(path, &st); err != nil || int(st.Uid) != want || st.Mode&0o777 != 0o600 {
			t.Errorf("%s is %d's with mode %o (%v), want %d", name, st.Uid, st.Mode, err, want)
		}
	}
	reserve("a", first)
	reserve("b", first+1)
	reserve("c", first+2)
	if err := os.Remove(filepath.Join(dir, "b")); err != nil {
		t.Fatal(err)
	}
	reserve("d", first+1)
	reserve("e", first+3)
}
