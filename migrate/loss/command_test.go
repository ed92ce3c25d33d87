package loss

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// A fence is told the node, and has failed unless it ends with 0: also if it is not there, or
// does not end, with all that it has started.
func TestCommand(t *testing.T) {
	said := filepath.Join(t.TempDir(), "said")
	command := func(text string) []string { return []string{"/bin/sh", "-c", text, "fence"} }
	node := &nodev1.NodeInfo{Name: "n1", Address: "n1:7444"}
	if err := Command(command(`echo $1 $GODWIT_LOST_NODE $GODWIT_LOST_ADDRESS >`+said))(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(said); err != nil || string(got) != "n1 n1 n1:7444\n" {
		t.Errorf("it was told %q: %v", got, err)
	}
	if err := Command(command("echo the power stays on >&2; exit 3"))(t.Context(), node); err == nil ||
		!strings.Contains(err.Error(), "the power stays on") {
		t.Errorf("status 3: %v", err)
	}
	if err := Command([]string{"/not/there"})(t.Context(), node); err == nil {
		t.Error("a command that is not there has fenced")
	}
	ctx, cancel := context.WithCancel(t.Context())
	child := filepath.Join(t.TempDir(), "child")
	go func() { // it is ended once it has started something
		defer cancel()
		for text := []byte(nil); len(text) == 0 && t.Context().Err() == nil; time.Sleep(10 * time.Millisecond) {
			text, _ = os.ReadFile(child)
		}
	}()
	if err := Command(command("sleep 600 & echo $! >"+child+"; sleep 600; true"))(ctx, node); err == nil {
		t.Error("a command that does not end has fenced")
	}
	text, err := os.ReadFile(child)
	if err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(30 * time.Second); lives(strings.TrimSpace(string(text))); time.Sleep(
		10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("process %s, which it has started, is left", text)
		}
	}
}

// lives reports whether a process is there and not a zombie.
func lives(pid string) bool {
	stat, err := os.ReadFile(filepath.Join("/proc", pid, "stat"))
	_, state, _ := strings.Cut(string(stat), ") ")
	return err == nil && !strings.HasPrefix(state, "Z")
}
