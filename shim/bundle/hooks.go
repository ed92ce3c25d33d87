package bundle

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// HookKind is when a hook runs.
type HookKind string

// The kinds that run on the host, in the runtime's namespaces.
const (
	Prestart      HookKind = "prestart"      // in Create, before CreateRuntime
	CreateRuntime HookKind = "createRuntime" // in Create; the network namespace exists
	Poststart     HookKind = "poststart"     // in Start, after the process runs
	Poststop      HookKind = "poststop"      // in Delete
)

// Hooks of a container, by kind.
type Hooks map[HookKind][]specs.Hook

// hookOutput bounds what an error quotes of a hook's stderr.
const hookOutput = 4096

// readHooks reads the deprecated prestart too: nerdctl's and NVIDIA's tools write it.
func readHooks(h *specs.Hooks) (Hooks, error) {
	if h == nil {
		return nil, nil
	}
	if len(h.CreateContainer) > 0 {
		return nil, refused("hooks.createContainer", "there is no container on the host that it could run in")
	}
	if len(h.StartContainer) > 0 {
		return nil, refused("hooks.startContainer", "there is no container on the host that it could run in")
	}
	hooks := Hooks{Prestart: h.Prestart, CreateRuntime: h.CreateRuntime, Poststart: h.Poststart, Poststop: h.Poststop}
	for kind, list := range hooks {
		for i, hook := range list {
			if !filepath.IsAbs(hook.Path) {
				return nil, fmt.Errorf("hooks.%s[%d].path: %q is not an absolute path: %w", kind, i, hook.Path,
					errdefs.ErrInvalidArgument)
			}
			if hook.Timeout != nil && *hook.Timeout <= 0 {
				return nil, fmt.Errorf("hooks.%s[%d].timeout: %d is not a number of seconds above 0: %w", kind, i, *hook.Timeout,
					errdefs.ErrInvalidArgument)
			}
		}
	}
	return hooks, nil
}

// HooksOf reads the hooks of a bundle, and the annotations that they are told, for a program
// that cleans up after a shim that died.
func HooksOf(dir string) (Hooks, map[string]string, error) {
	data, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if err != nil {
		return nil, nil, fmt.Errorf("read hooks: %w", err)
	}
	var oci struct {
		Hooks       *specs.Hooks      `json:"hooks"`
		Annotations map[string]string `json:"annotations"`
	}
	if err := json.Unmarshal(data, &oci); err != nil {
		return nil, nil, fmt.Errorf("read hooks of %s: %w: %w", dir, err, errdefs.ErrInvalidArgument)
	}
	hooks, err := readHooks(oci.Hooks)
	return hooks, oci.Annotations, err
}

// Run runs the hooks of one kind in their order, each with state as JSON on stdin. The first
// failure ends it. Poststart and poststop hooks come when nothing can be taken back any more. Of
// these every one runs, and their failures are joined.
func (h Hooks) Run(ctx context.Context, kind HookKind, state specs.State) error {
	if len(h[kind]) == 0 {
		return nil
	}
	data, err := json.Marshal(state)
	if err != nil {
		return fmt.Errorf("run %s hooks: %w", kind, err)
	}
	var failed []error
	for i, hook := range h[kind] {
		if err := runHook(ctx, hook, data); err != nil {
			failed = append(failed, fmt.Errorf("run %s hook %d %s: %w", kind, i, hook.Path, err))
			if kind == Prestart || kind == CreateRuntime {
				break
			}
		}
	}
	return errors.Join(failed...)
}

// killedBound is how long the output of a hook is waited for that was killed: another may hold it.
const killedBound = time.Second

func runHook(ctx context.Context, hook specs.Hook, state []byte) error {
	if hook.Timeout != nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(*hook.Timeout)*time.Second)
		defer cancel()
	}
	var stderr bytes.Buffer
	cmd := exec.Command(hook.Path) //nolint:noctx // inTime ends it
	if len(hook.Args) > 0 {
		cmd.Args = hook.Args
	}
	cmd.Env = hook.Env // none: the shim's own, as with runc
	cmd.Stdin, cmd.Stderr = bytes.NewReader(state), &tail{buf: &stderr}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = killedBound
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	killed := endInTime(ctx, cmd.Process.Pid)
	err := cmd.Wait()
	switch {
	case err == nil:
		return nil
	case killed && errors.Is(context.Cause(ctx), context.DeadlineExceeded):
		err = fmt.Errorf("it did not end in time: %w", context.DeadlineExceeded)
	case errors.Is(err, exec.ErrWaitDelay):
		return nil // it ended well; a child of its own holds stderr
	}
	if text := strings.TrimSpace(stderr.String()); text != "" {
		return fmt.Errorf("%w: %s", err, text)
	}
	return err
}

// endInTime waits for the end of a child that leads a process group, and kills the group when
// ctx ends. It does not reap: until its caller does, the pid is the child's, and so is the
// group.
func endInTime(ctx context.Context, pid int) (killed bool) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for errors.Is(unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil), unix.EINTR) {
		}
	}()
	select {
	case <-ended:
	case <-ctx.Done():
		killed = unix.Kill(-pid, unix.SIGKILL) == nil
		<-ended
	}
	return killed
}

// tail keeps the last bytes written to it.
type tail struct{ buf *bytes.Buffer }

func (t *tail) Write(p []byte) (int, error) {
	t.buf.Write(p)
	if extra := t.buf.Len() - hookOutput; extra > 0 {
		t.buf.Next(extra)
	}
	return len(p), nil
}
