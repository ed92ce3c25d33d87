package agentd

import (
	"testing"

	"github.com/containerd/errdefs"

	agentv1 "godwit.dev/godwit/api/agent/lean"
)

// A Setup that asks for more than this guest knows is refused, also where it looks like
// the one that was carried out.
func TestSetupOfAnotherTime(t *testing.T) {
	s := barring()
	done := &agentv1.SetupRequest{Hostname: "h"}
	s.main().order = &order{setup: done, content: done.AppendTo(nil)}
	if _, err := s.Setup(t.Context(), &agentv1.SetupRequest{Hostname: "h"}); err != nil {
		t.Errorf("the same again: %v", err)
	}
	if _, err := s.Setup(t.Context(), &agentv1.SetupRequest{Hostname: "i"}); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("another: %v", err)
	}
	younger := &agentv1.SetupRequest{Hostname: "h"}
	if err := younger.Unmarshal([]byte("\xf8\x3f\x01")); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Setup(t.Context(), younger); !errdefs.IsNotImplemented(err) {
		t.Errorf("a younger one: %v", err)
	}
}
