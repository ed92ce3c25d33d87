package agentd

import (
	"bufio"
	"errors"
	"os/exec"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	agentv1 "godwit.dev/godwit/api/agent/lean"
)

// A signal of one name reaches its process once; another name, or none, is another signal.
func TestSignalIsDeliveredOnce(t *testing.T) {
	cmd := exec.Command("sh", "-c",
		`n=0; trap 'n=$((n+1))' USR1; trap 'echo $n' USR2; echo 0; while :; do sleep 0.01; done`)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	one := &spawned{pid: cmd.Process.Pid}
	s := barring()
	s.children.runs[one.pid] = one
	s.processes["p"] = &process{spawned: one, box: s.main()}
	kill := func(sig unix.Signal, once uint64) {
		if _, err := s.Kill(t.Context(), &agentv1.KillRequest{Id: "p", Signal: uint32(sig), Once: once}); err != nil {
			t.Fatal(err)
		}
	}
	lines := bufio.NewScanner(out)
	lines.Scan()
	for i, c := range []struct {
		once uint64
		want string
	}{{7, "1"}, {7, "1"}, {8, "2"}, {7, "2"}, {0, "3"}, {0, "4"}} {
		kill(unix.SIGUSR1, c.once)
		kill(unix.SIGUSR2, 0) // its trap is run after that of the other one
		if lines.Scan(); lines.Text() != c.want {
			t.Fatalf("after signal %d it has got %s, want %s", i, lines.Text(), c.want)
		}
	}
	for i := range uint64(2 * deliveredMax) {
		s.note(i + 100)
	}
	if len(s.delivered) != deliveredMax {
		t.Errorf("%d names are kept", len(s.delivered))
	}
}

// A signal that met no process is tried again under its name: only what was delivered is kept.
func TestSignalThatFailedIsTriedAgain(t *testing.T) {
	s := barring()
	for range 2 {
		if _, err := s.Kill(t.Context(), &agentv1.KillRequest{Id: "p", Signal: 9, Once: 7}); !errdefs.IsNotFound(err) {
			t.Errorf("signal to nobody: %v", err)
		}
	}
}

// A Start of the init that failed answers its reason as often as it is asked: the first answer
// may have been lost.
func TestFailedStartOfInitKeepsItsReason(t *testing.T) {
	s := barring()
	reason := errors.Join(errdefs.ErrNotFound, errors.New("no such program"))
	s.main().refused = reason
	if _, err := s.startInit(t.Context(), s.main(), nil, nil, nil); !errors.Is(err, reason) {
		t.Errorf("start again: %v", err)
	}
}
