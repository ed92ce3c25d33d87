package tool

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// What an image has in the place of passwd is waited for no more than it is read without an end.
func TestDatabase(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	for _, err := range []error{
		os.WriteFile(at("passwd"), []byte("app:x:1000:1001::/:/bin/sh\n"), 0o600), unix.Mkfifo(at("fifo"), 0o600),
		os.WriteFile(at("group"), []byte("more:x:7:app\n"), 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if id, err := identityIn("app", at("passwd"), at("group")); err != nil || id.UID != 1000 || id.GID != 1001 ||
			len(id.Groups) != 1 {
			t.Errorf("%+v, %v", id, err)
		}
		if id, err := identityIn("app", at("passwd"), at("none")); err != nil || id.UID != 1000 {
			t.Errorf("without groups: %+v, %v", id, err)
		}
		if _, err := identityIn("app", at("fifo"), at("fifo")); err == nil {
			t.Error("a fifo has the user")
		}
		if id, err := identityIn("7:8", at("fifo"), at("none")); err != nil || id.UID != 7 || id.GID != 8 {
			t.Errorf("numbers: %+v, %v", id, err)
		}
		if names := namesIn(at("passwd")); names[1000] != "app" || len(namesIn(at("fifo"))) != 0 {
			t.Errorf("names %v", names)
		}
	}()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		t.Error("a fifo is waited for")
	}
}
