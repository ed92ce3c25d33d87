package agentd

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/containerd/errdefs"

	agentv1 "godwit.dev/godwit/api/agent/lean"
)

// barring reaps nothing: the children of a test are its own.
func barring() *Service {
	s := newService(newContainer("", "", ""))
	s.children = &children{runs: map[int]*spawned{}}
	return s
}

func never(id string) *agentv1.KillRequest {
	return &agentv1.KillRequest{Id: id, Signal: 9, Never: true}
}

// A Start that comes after its own end is refused, however often it comes; another id is not.
func TestStartIsGivenUpBeforeItComes(t *testing.T) {
	s := barring()
	for range 2 {
		if _, err := s.Kill(t.Context(), never("e")); err != nil {
			t.Fatalf("kill of what has not come yet: %v", err)
		}
	}
	ran := 0
	run := func() (*process, error) { ran++; return &process{}, nil }
	for range 2 {
		if _, err := s.startOnce(t.Context(), "e", s.main(), run); !errdefs.IsAborted(err) || ran > 0 {
			t.Errorf("start: %v; it ran %d times", err, ran)
		}
	}
	if _, err := s.startOnce(t.Context(), "f", s.main(), run); err != nil || ran != 1 {
		t.Errorf("start of another: %v; it ran %d times", err, ran)
	}
	if _, err := s.Kill(t.Context(), &agentv1.KillRequest{Id: "g", Signal: 9}); !errdefs.IsNotFound(err) {
		t.Errorf("a kill for now, of nobody: %v", err)
	}
	if _, err := s.Kill(t.Context(), never("")); !errdefs.IsInvalidArgument(err) {
		t.Errorf("kill of init for good: %v", err)
	}
	for i := range 2 * barredMax {
		if _, err := s.Kill(t.Context(), never(fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
	if len(s.barred) != barredMax {
		t.Errorf("%d ids are kept", len(s.barred))
	}
}

// The end of a Start under way comes after it: no caller hears that there is no such process
// while there is about to be one.
func TestStartIsGivenUpUnderWay(t *testing.T) {
	for name, failure := range map[string]error{"it runs": nil, "it fails": errors.New("no such file")} {
		s := barring()
		begun, goOn, killed := make(chan struct{}), make(chan struct{}), make(chan error, 1)
		over := make(chan error, 1)
		go func() {
			_, err := s.startOnce(t.Context(), "e", s.main(), func() (*process, error) {
				close(begun)
				<-goOn
				return &process{done: make(chan struct{})}, failure
			})
			over <- err
		}()
		<-begun
		soon, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := s.Kill(soon, never("e")); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: a kill that does not wait: %v", name, err)
		}
		go func() { _, err := s.Kill(t.Context(), never("e")); killed <- err }()
		close(goOn)
		if err := <-killed; err != nil {
			t.Errorf("%s: kill: %v", name, err)
		}
		if err := <-over; !errors.Is(err, failure) {
			t.Errorf("%s: start: %v", name, err)
		}
		if _, found := s.processes["e"]; found != (failure == nil) {
			t.Errorf("%s: the guest has the process: %v", name, found)
		}
	}
}
