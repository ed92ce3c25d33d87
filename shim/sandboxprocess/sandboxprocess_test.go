package sandboxprocess

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"testing"

	"godwit.dev/godwit/shim/proc"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == Subcommand {
		if Main(os.Args[2:]) != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// A sandbox process stays once it is written down, and not otherwise.
func TestStart(t *testing.T) {
	var held proc.ID
	note := func(id proc.ID) error { held = id; return nil }
	if err := Start(t.Context(), os.Args[0], Namespace{}, note); err != nil {
		t.Fatal(err)
	}
	if alive, err := held.Alive(); !alive || err != nil {
		t.Errorf("the sandbox process lives: %t, %v", alive, err)
	}
	if err := held.Kill(context.Background()); err != nil {
		t.Error(err)
	}
	full := errors.New("disk full")
	err := Start(t.Context(), os.Args[0], Namespace{}, func(id proc.ID) error { held = id; return full })
	if alive, unknown := held.Alive(); !errors.Is(err, full) || alive || unknown != nil {
		t.Errorf("start = %v, alive %t, %v", err, alive, unknown)
	}
	if err := Start(t.Context(), os.Args[0], Namespace{Path: "/nowhere"}, note); err == nil {
		t.Error("a sandbox process in no namespace started")
	}
}

// A sandbox process whose starter is killed before it has written it down ends by itself.
func TestUnknownSandboxProcessEnds(t *testing.T) {
	ready, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer ready.Close()
	r, stay, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0], Subcommand)
	cmd.ExtraFiles = []*os.File{w, r}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	r.Close()
	if err := waitReady(t.Context(), ready); err != nil {
		t.Error(err)
	}
	stay.Close() // as the kernel does for the dead
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Errorf("the sandbox process ended with %v", err)
	}
}
