package cli

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"godwit.dev/godwit/migrate/controller"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// shown is what a command prints while it runs.
type shown struct {
	mu   sync.Mutex
	text bytes.Buffer
	over chan struct{} // closed when it has ended
}

func (s *shown) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(p)
}

func (s *shown) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// until waits for words in it.
func (s *shown) until(t *testing.T, words string, times int) {
	t.Helper()
	for strings.Count(s.String(), words) < times {
		select {
		case <-s.over:
			if strings.Count(s.String(), words) < times {
				t.Fatalf("it has ended without %q: %s", words, s)
			}
		case <-time.After(time.Millisecond):
		}
	}
}

// command is one that runs while the test does.
type command struct {
	out, log  shown
	interrupt func()
	code      chan int
}

func runs(t *testing.T, socket, line string) *command {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	over := make(chan struct{})
	c := &command{out: shown{over: over}, log: shown{over: over}, interrupt: cancel, code: make(chan int, 1)}
	var running sync.WaitGroup
	running.Go(func() {
		defer close(over)
		c.code <- Run(ctx, append([]string{"-n", "default", "--socket", socket}, strings.Fields(line)...), &c.out, &c.log)
	})
	t.Cleanup(func() { cancel(); running.Wait() })
	return c
}

// tellers answers watchers from a list of events that stays when a teller ends.
type tellers struct {
	nodev1.MovesService
	mu     sync.Mutex
	events []*nodev1.MoveEvent
}

func (s *tellers) add(ids ...uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range ids {
		s.events = append(s.events, &nodev1.MoveEvent{Id: id, Type: fmt.Sprintf("event-%d", id),
			Vm: &nodev1.VM{Namespace: "n", Id: "v"}})
	}
}

// forget all.
func (s *tellers) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = nil
}

func (s *tellers) Events(ctx context.Context, req *nodev1.EventsRequest) (*nodev1.EventsResponse, error) {
	for {
		resp := &nodev1.EventsResponse{}
		s.mu.Lock()
		for _, ev := range s.events {
			if ev.GetId() > req.GetAfter() {
				resp.Events = append(resp.Events, ev)
			}
		}
		s.mu.Unlock()
		if len(resp.GetEvents()) > 0 {
			return resp, nil
		}
		select {
		case <-ctx.Done():
			return resp, ctx.Err()
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func (s *tellers) serve(t *testing.T, socket string) (stop func()) {
	t.Helper()
	srv, err := controller.NewServer()
	if err != nil {
		t.Fatal(err)
	}
	nodev1.RegisterMovesService(srv, s)
	stop = serve(t, srv, socket)
	t.Cleanup(stop)
	return stop
}

// place of a socket, whose name is short.
func place(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "g")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return filepath.Join(dir, "s")
}

func lines(from, to int) (text string) {
	for i := from; i <= to; i++ {
		text += fmt.Sprintf("%d 1970-01-01T00:00:00Z event-%d n/v - -> -\n", i, i)
	}
	return text
}
