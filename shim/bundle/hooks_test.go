package bundle

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

func sh(script string) specs.Hook {
	return specs.Hook{Path: "/bin/sh", Args: []string{"sh", "-c", script}, Env: []string{"PATH=/usr/bin:/bin", "WHO=hook"}}
}

func TestHooksRunInOrderWithState(t *testing.T) {
	out := filepath.Join(t.TempDir(), "out")
	h := Hooks{CreateRuntime: {sh("printf \"$WHO \" >>" + out + "; cat >>" + out), sh("printf ' two' >>" + out)}}
	if err := h.Run(t.Context(), CreateRuntime, specs.State{ID: "c1", Pid: 7}); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(out)
	if err != nil || !strings.HasPrefix(string(data), `hook {"ociVersion"`) ||
		!strings.Contains(string(data), `"pid":7`) || !strings.HasSuffix(string(data), " two") {
		t.Errorf("hooks wrote %q, %v", data, err)
	}
	if err := h.Run(t.Context(), Poststop, specs.State{}); err != nil {
		t.Errorf("no hooks of a kind: %v", err)
	}
}

func TestHooksFail(t *testing.T) {
	out := filepath.Join(t.TempDir(), "out")
	list := []specs.Hook{sh("echo broken >&2; exit 3"), sh("touch " + out)}
	for _, kind := range []HookKind{Prestart, CreateRuntime, Poststart, Poststop} {
		err := Hooks{kind: list}.Run(t.Context(), kind, specs.State{})
		if err == nil || !strings.Contains(err.Error(), "broken") || !strings.Contains(err.Error(), string(kind)) {
			t.Errorf("%s: %v, want stderr in the error", kind, err)
		}
		if _, err := os.Stat(out); (err == nil) != (kind == Poststart || kind == Poststop) {
			t.Errorf("%s: the hook after a failed one ran: %v", kind, err == nil)
		}
	}
}

func TestHookTimeout(t *testing.T) {
	one := 1
	hook := sh("sleep 600 & sleep 600")
	hook.Timeout = &one
	err := Hooks{Prestart: {hook}}.Run(t.Context(), Prestart, specs.State{})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Run = %v, want DeadlineExceeded", err)
	}
}

func TestHookQuotesEndOfStderr(t *testing.T) {
	err := Hooks{Prestart: {sh("i=0; while [ $i -lt 900 ]; do echo 0123456789 >&2; i=$((i+1)); done; echo last >&2; " +
		"exit 1")}}.Run(t.Context(), Prestart, specs.State{})
	if err == nil || !strings.HasSuffix(err.Error(), "last") || len(err.Error()) > hookOutput+200 {
		t.Errorf("error has %d bytes and ends %q", len(err.Error()), err.Error()[max(0, len(err.Error())-20):])
	}
}

// A hook's process group is killed while the hook is not reaped: until then no other group has its
// number.
func TestHookIsKilledBeforeItIsReaped(t *testing.T) {
	for _, script := range []string{"exec sleep 600", "exit 3"} {
		cmd := exec.Command("sh", "-c", script)
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		if script != "exit 3" {
			cancel()
		}
		killed := endInTime(ctx, cmd.Process.Pid)
		cancel()
		if err := unix.Waitid(unix.P_PID, cmd.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT|unix.WNOHANG, nil); err != nil {
			t.Errorf("%s: it was reaped: %v", script, err)
		}
		if err := cmd.Wait(); err == nil || killed == (cmd.ProcessState.ExitCode() == 3) {
			t.Errorf("%s: killed %t, %v", script, killed, err)
		}
	}
}
