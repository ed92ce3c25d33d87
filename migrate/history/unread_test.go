package history

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A history that cannot be read is not written over: it is kept under another name, and a gap is told. Lines that are
// no events are a gap too.
func TestUnreadHistory(t *testing.T) {
	path := filepath.Join(t.TempDir(), "events.jsonl")
	gap := func() string {
		t.Helper()
		h := Open(path, "a")
		if err := h.Close(); err != nil {
			t.Fatal(err)
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		for _, ev := range h.all {
			if ev.GetEvent() == Gap {
				return ev.GetReason()
			}
		}
		return ""
	}
	if err := os.Mkdir(path, 0o700); err != nil { // a read of it fails
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(path, "good"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if reason := gap(); !strings.Contains(reason, "cannot be read") {
		t.Errorf("a gap says %q", reason)
	}
	if _, err := os.Stat(filepath.Join(path+".unread", "good")); err != nil {
		t.Errorf("what could not be read is gone: %v", err)
	}
	if err := os.WriteFile(path, []byte("no event\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if reason := gap(); !strings.Contains(reason, "1 lines") {
		t.Errorf("a gap says %q", reason)
	}
}
