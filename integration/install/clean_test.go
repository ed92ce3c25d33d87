//go:build integration

package install

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"godwit.dev/godwit/integration/harness"
)

// way is what a user types on a clean system, from the packages at hand to a VM that slept and woke.
var way = []string{
	"apt-get install --yes --no-install-recommends /root/*.deb",
	"godwit doctor --fix", // where systemd runs the host, the packages start both daemons by themselves
	"godwit run -d --name web " + busybox + " sh -c 'echo $RANDOM$RANDOM >/dev/shm/mark; sleep 1000000'",
	"godwit hibernate web",
	"godwit wake web",
}

// fromNothing is what the way took on one release; out/install.json has a list of them.
type fromNothing struct {
	Release  string  `json:"release"`
	Commands int     `json:"commands"`
	Seconds  float64 `json:"seconds"`
}

// TestFromCleanSystem shows that these commands lead from a clean Debian to a VM that slept and woke with its memory,
// and how long they take.
func TestFromCleanSystem(t *testing.T) {
	top, deb := built(t)
	vendor := vendorsContainerd(t, top)
	var all []fromNothing
	for _, r := range releases {
		t.Run(r.name, func(t *testing.T) {
			clean := boot(t, r.suite, "mount --bind "+cleanRoot(t, r, deb, vendor)+" /mnt/root")
			took := walk(t, clean)
			all = append(all, fromNothing{r.name, len(way), took.Seconds()})
			t.Logf("install: %s: %d commands to a VM that slept and woke, %.1f s", r.name, len(way), took.Seconds())
		})
	}
	if t.Failed() {
		return
	}
	if err := harness.WriteResult(filepath.Join(top, "out", "install.json"), all); err != nil {
		t.Fatal(err)
	}
}

// walk types the commands, and answers the time they took. Between them it looks, and that time does not count.
func walk(t *testing.T, clean *root) (took time.Duration) {
	t.Helper()
	mark := func() string { // nothing, before the program has written
		return strings.TrimSpace(clean.run(t, "godwit", "exec", "web", "sh", "-c", "cat /dev/shm/mark 2>/dev/null || true"))
	}
	was := ""
	for _, line := range way {
		if strings.HasPrefix(line, "godwit hibernate") {
			// The VM runs before its program has written.
			for end := time.Now().Add(time.Minute); was == "" && time.Now().Before(end); {
				was = mark()
			}
		}
		begun := time.Now()
		said := clean.run(t, "sh", "-c", line)
		took += time.Since(begun)
		t.Logf("$ %s\n%s", line, said)
	}
	if is := mark(); is != was || is == "" {
		t.Errorf("the VM's memory says %q, before it slept %q", is, was)
	}
	return took
}
