package journal

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// writerEnv names the directory that a second writer writes to.
const writerEnv = "GODWIT_TEST_WRITER"

// After a shim has died, its successor and what containerd starts to clean up write the journal,
// each in a process of its own: the file is the one's or the other's, whole.
func TestJournalOfTwoWriters(t *testing.T) {
	dir, rounds := os.Getenv(writerEnv), 300
	long := &Journal{Phase: Fenced, Operation: "o", Resources: Resources{Bundle: strings.Repeat("x", 16<<10)}}
	if dir != "" {
		for range rounds {
			if err := long.Write(dir); err != nil {
				t.Fatal(err)
			}
		}
		return
	}
	dir = t.TempDir()
	other := exec.Command(os.Args[0], "-test.run=TestJournalOfTwoWriters$")
	other.Env = append(os.Environ(), writerEnv+"="+dir)
	done := make(chan error, 1)
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { done <- other.Wait() }()
	for over := false; !over; {
		select {
		case err := <-done:
			if over = true; err != nil {
				t.Fatal(err)
			}
		default:
		}
		if err := (&Journal{Phase: Fenced, Operation: "o"}).Write(dir); err != nil {
			t.Fatal(err)
		}
		if _, err := Read(dir); err != nil {
			_ = other.Process.Kill()
			t.Fatal(err)
		}
	}
	if left, err := filepath.Glob(filepath.Join(dir, "*.tmp")); len(left) > 0 || err != nil {
		t.Errorf("left: %v, %v", left, err)
	}
}
