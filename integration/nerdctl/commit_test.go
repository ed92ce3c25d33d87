//go:build integration

package nerdctl

import (
	"strings"
	"testing"

	"godwit.dev/godwit/integration/images"
)

// A commit or diff of a VM, which would lack its files, fails and says what to use. The VM runs on, and no image
// is made. A container that was never started is its image.
func (s *site) testCommit(t *testing.T) {
	s.sh(t, "web", "echo precious >/root/file")
	refused := func(args ...string) {
		t.Helper()
		if r := s.nerdctl(t, args...); r.code == 0 || !strings.Contains(r.errs, "use godwit cp or godwit checkpoint") {
			t.Errorf("nerdctl %v: %+v", args, r)
		}
	}
	refused("commit", "web", "saved")
	refused("commit", "--pause=false", "web", "saved")
	refused("diff", "web")
	if got := s.sh(t, "web", "cat /root/file"); got != "precious\n" {
		t.Errorf("after commit: %q", got)
	}
	s.detached(t, "ended", images.Busybox, "touch", "/root/file")
	s.ok(t, "wait", "ended")
	if r := s.nerdctl(t, "commit", "--pause=false", "ended", "saved"); r.code == 0 ||
		!strings.Contains(r.errs, "use godwit cp") {
		t.Errorf("commit of what has ended: %+v", r)
	}
	if got := s.ok(t, "images", "-q", "saved"); got != "" {
		t.Errorf("an image was made: %s", got)
	}
	s.ok(t, "start", "ended")
	s.ok(t, "wait", "ended")
	if code := s.field(t, "ended", "{{.State.ExitCode}}"); code != "0" {
		t.Errorf("the second start ended with %s", code)
	}
	s.ok(t, "create", "--name", "untouched", "--runtime", runtimeName, images.Busybox, "true")
	s.ok(t, "commit", "--pause=false", "untouched", "saved")
	s.ok(t, "rmi", "saved")
	s.ok(t, "rm", "untouched")
}
