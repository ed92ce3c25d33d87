package nodesetup

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// Init runs commands in the mounts, names and network of the process with this pid, as the host's first one is.
type Init int

// hostPath is where the host's programs are.
const hostPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// Run implements Host.
func (pid Init) Run(ctx context.Context, command []string) error {
	if len(command) == 0 {
		return fmt.Errorf("the command is empty: %w", errdefs.ErrInvalidArgument)
	}
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the runtime ends the thread
		done <- pid.run(ctx, command)
	}()
	return <-done
}

func (pid Init) run(ctx context.Context, command []string) error {
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("unshare: %w", err)
	}
	var spaces []*os.File
	defer func() {
		for _, f := range spaces {
			_ = f.Close()
		}
	}()
	for _, name := range []string{"ipc", "net", "mnt"} {
		f, err := os.Open(fmt.Sprintf("/proc/%d/ns/%s", pid, name))
		if err != nil {
			return fmt.Errorf("find the host: %w", err)
		}
		spaces = append(spaces, f)
	}
	for _, f := range spaces {
		if err := unix.Setns(int(f.Fd()), 0); err != nil {
			return fmt.Errorf("enter %s: %w", f.Name(), err)
		}
	}
	// env finds the program on the host; the search of package exec may run elsewhere.
	cmd := exec.CommandContext(ctx, "/usr/bin/env", command...)
	cmd.Env, cmd.Dir = []string{hostPath}, "/"
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("run %q on the host: %w: %.1000s", command, err, out)
	}
	return nil
}
