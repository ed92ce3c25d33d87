//go:build integration

package vmdisk

import (
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/integration/images"
	"godwit.dev/godwit/vmm/cloudhypervisor"
)

// resetTicks is after how many seconds the guest resets itself: it has slept and told of its memory by then.
const resetTicks = "25"

var sums = regexp.MustCompile(`sum ([0-9a-f]{32})`)

// lazy is a VM disk that wakes while its RAM comes: its memory is what it was. Then its guest resets itself while RAM
// is to come, sleeps, and wakes on the other node as the one that it has become.
func (s *site) lazy(t *testing.T) {
	const vm = "late"
	c := run(t, s.a, append(byKernel(form()), "--annotation", "godwit.dev/memory=256MiB", "--annotation",
		"godwit.dev/restore=lazy", images.KernelDisk, vm)...)
	first := c.state()
	c.types("head -c 16777216 /dev/urandom >/noise")
	c.types("echo sum $(md5sum </noise)")
	want := sums.FindString(c.out.String())
	c.types("(while sleep 1; do echo sum $(md5sum </noise); done) &")
	c.types("reset-at " + resetTicks)
	s.a.Godwit(t, "hibernate", vm)

	log := s.log(s.b, vm)
	open := s.holdFill(s.b, vm)
	defer open()
	s.b.Godwit(t, "wake", "--on", s.b.Name, vm)
	wait(t, "the sum of its memory", func() error {
		if sums.MatchString(log()) {
			return nil
		}
		return errors.New(tail(log()))
	})
	if got := sums.FindString(log()); got != want {
		t.Errorf("the guest's memory is another: %q, was %q", got, want)
	}
	if now := s.restoring(t, s.b); !strings.HasPrefix(now, "lazy, ") {
		t.Errorf("restore is %q", now)
	}
	awaitTick(t, log, func(state) bool { return true }).want(t, state{"nonce": first["nonce"], "boots": "1"})
	again := awaitTick(t, log, func(s state) bool { return s["boots"] == "2" })
	if harness.VMM() != cloudhypervisor.Name { // QEMU keeps RAM, which comes on
		open()
	}
	wait(t, "the end of the fill", func() error {
		if now := s.restoring(t, s.b); now != "" {
			return errors.New("restore is " + now)
		}
		return nil
	})
	open()

	s.b.Godwit(t, "hibernate", vm)
	log = s.later(s.a, vm)
	s.a.Godwit(t, "wake", "--on", s.a.Name, vm)
	awaitTick(t, log, func(state) bool { return true }).want(t, state{"nonce": again["nonce"], "disk": again["nonce"],
		"boots": "2"})
	s.powerOff(t, s.a, vm, log)
	s.remove(t, vm, s.a, s.b)
}

// holdFill holds the packs that the fill of a VM that runs on a node reads whole. What the VM waits for passes.
func (s *site) holdFill(n *harness.Node, vm string) (open func()) {
	_, open = s.h.Door.Hold(func(r *http.Request) bool {
		_, digest, _ := strings.Cut(r.URL.Path, "/blobs/")
		if r.Method != http.MethodGet || r.Header.Get("Range") != "" || !strings.HasPrefix(digest, "sha256:") {
			return false
		}
		st, err := os.Stat(s.h.Blob(digest))
		var j struct{ Phase string }
		data, _ := os.ReadFile(filepath.Join(n.Dir, "lib", "vms", "default", vm, "node.json"))
		_ = json.Unmarshal(data, &j)
		return err == nil && st.Size() > 4<<20 && j.Phase != "INCOMING"
	})
	return open
}

// restoring is what godwit ps says of the restore.
func (s *site) restoring(t *testing.T, n *harness.Node) string {
	t.Helper()
	_, rest, _ := strings.Cut(n.Godwit(t, "ps", "-o", "wide"), "restore: ")
	line, _, _ := strings.Cut(rest, "\n")
	return line
}
