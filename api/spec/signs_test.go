package spec

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
)

// What a Spec asks for is what its annotations say, wherever it comes from; what they
// cannot say is refused by its key.
func TestSigns(t *testing.T) {
	s := good()
	if c, within := s.Ready(); c != nil || within != 0 || s.Notify() != nil || s.Check() != nil {
		t.Errorf("of a Spec that asks for nothing: %q %v %q %v", c, within, s.Notify(), s.Check())
	}
	s.Annotations = map[string]string{
		AnnotationReady: " /bin/ready  now ", AnnotationReadyTimeout: "90s",
		AnnotationNotify: `["/bin/sh", "-c", "echo $0 $1"]`,
	}
	if c, within := s.Ready(); !slices.Equal(c, []string{"/bin/ready", "now"}) || within != 90*time.Second {
		t.Errorf("ready: %q within %v", c, within)
	}
	if c := s.Notify(); !slices.Equal(c, []string{"/bin/sh", "-c", "echo $0 $1"}) {
		t.Errorf("notify: %q", c)
	}
	if err := s.Check(); err != nil {
		t.Error(err)
	}
	for _, bad := range []struct{ key, value string }{
		{AnnotationReady, ""},
		{AnnotationReady, "[]"},
		{AnnotationReady, `["", "x"]`},
		{AnnotationReady, `["a\u0000b"]`},
		{AnnotationReady, `{"a": 1}` + strings.Repeat("x", maxCommand)},
		{AnnotationNotify, `["sh"`},
		{AnnotationNotify, `[1]`},
		{AnnotationReadyTimeout, "10"},
		{AnnotationReadyTimeout, "1ms"},
		{AnnotationReadyTimeout, "25h"},
	} {
		s := good()
		s.Annotations = map[string]string{bad.key: bad.value}
		if err := s.Check(); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), bad.key) {
			t.Errorf("%s = %q: %v", bad.key, bad.value, err)
		}
		s.Ready() // a caller that does not check first gets nothing worse than no answer
		s.Notify()
	}
	vmDisk(s)
	s.NICs = nil
	if c, _ := s.Ready(); c != nil || s.Notify() != nil {
		t.Error("a VM disk is asked")
	}
	if err := s.Check(); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), AnnotationReady) {
		t.Errorf("a VM disk that is to be asked: %v", err)
	}
}
