package proc

import (
	"errors"
	"os"
	"os/exec"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"godwit.dev/godwit/internal/fdtest"
)

// sleeper is a process that does nothing until the test ends.
func sleeper(t *testing.T) ID {
	t.Helper()
	cmd := exec.Command("sleep", "600")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	id, err := Find(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// ended is a process that is gone.
func ended(t *testing.T) ID {
	t.Helper()
	cmd := exec.Command("sleep", "600")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	id, err := Find(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	return id
}

func wantUnknown(t *testing.T, call string, err error) {
	t.Helper()
	if !errors.Is(err, ErrUnknown) || !errdefs.IsUnavailable(err) {
		t.Errorf("%s = %v, want that nobody knows", call, err)
	}
}

// Without a free descriptor, and with one, a living process is never called dead or killed. One
// that is gone is still proved to be gone.
func TestNoDescriptors(t *testing.T) {
	id, gone := sleeper(t), ended(t)
	for left := range 2 {
		restore := fdtest.Exhaust(t, left)
		alive, err := id.Alive()
		kill, signal, wait := id.Kill(t.Context()), id.Signal(unix.SIGKILL), error(nil)
		if left == 0 {
			wait = id.Wait(t.Context())
		}
		stop := id.Stop(t.Context())
		goneAlive, goneErr := gone.Alive()
		goneKill := gone.Kill(t.Context())
		restore()
		if left == 0 {
			wantUnknown(t, "alive", err)
			wantUnknown(t, "wait", wait)
		} else if !alive || err != nil {
			t.Errorf("with a descriptor alive = %t, %v", alive, err)
		}
		wantUnknown(t, "kill", kill)
		wantUnknown(t, "signal", signal)
		wantUnknown(t, "stop", stop)
		if goneAlive || goneErr != nil || goneKill != nil {
			t.Errorf("of what is gone: alive %t, %v; kill %v", goneAlive, goneErr, goneKill)
		}
		if alive, err := id.Alive(); !alive || err != nil {
			t.Errorf("after that it is alive: %t, %v", alive, err)
		}
	}
}

// A process of another boot is gone, whatever has its pid and start time today, and gets no signal.
func TestAnotherBoot(t *testing.T) {
	id := sleeper(t)
	before := id
	before.Boot = "00000000-0000-0000-0000-000000000000"
	if alive, err := before.Alive(); alive || err != nil {
		t.Errorf("alive = %t, %v", alive, err)
	}
	if err := before.Signal(unix.SIGKILL); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("signal = %v", err)
	}
	if err := before.Kill(t.Context()); err != nil {
		t.Errorf("kill = %v", err)
	}
	if alive, err := id.Alive(); !alive || err != nil {
		t.Errorf("the process that has its pid now is alive: %t, %v", alive, err)
	}
}

// An ID that an earlier build wrote is gone if no process has its pid and start time. If one has
// them, its state is unknown until the process has been looked at, and nothing is done to it.
func TestWithoutBoot(t *testing.T) {
	id, gone := sleeper(t), ended(t)
	id.Boot, gone.Boot = "", ""
	if alive, err := gone.Alive(); alive || err != nil {
		t.Errorf("of what is gone: alive = %t, %v", alive, err)
	}
	other := id
	other.StartTime--
	if alive, err := other.Alive(); alive || err != nil {
		t.Errorf("of what started at another time: alive = %t, %v", alive, err)
	}
	_, err := id.Alive()
	wantUnknown(t, "alive", err)
	wantUnknown(t, "kill", id.Kill(t.Context()))
	wantUnknown(t, "continue", id.Continue())

	says := func(yes bool, err error) ID { return id.WithBoot(func(int) (bool, error) { return yes, err }) }
	if alive, err := says(true, nil).Alive(); !alive || err != nil {
		t.Errorf("one that is ours: alive = %t, %v", alive, err)
	}
	theirs := says(false, nil)
	if alive, err := theirs.Alive(); alive || err != nil || theirs.Kill(t.Context()) != nil {
		t.Errorf("one that is not: alive = %t, %v", alive, err)
	}
	if now := says(false, errors.New("no descriptor")); now != id {
		t.Errorf("one of which nobody knows became %v", now)
	}
	if err := says(true, nil).Kill(t.Context()); err != nil {
		t.Errorf("kill = %v", err)
	}
}

// A pid that a thread of another process has by now is no process of ours: it is gone, and not
// unknown for as long as that thread lives.
func TestPidOfAThread(t *testing.T) {
	tid := make(chan int)
	stay := make(chan struct{})
	defer close(stay)
	go thread(tid, stay)
	id, err := Find(<-tid)
	if err != nil {
		t.Fatal(err)
	}
	id.StartTime--
	if alive, err := id.Alive(); alive || err != nil {
		t.Errorf("alive = %t, %v", alive, err)
	}
	if err := id.Kill(t.Context()); err != nil {
		t.Errorf("kill = %v", err)
	}
}
