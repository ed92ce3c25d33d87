package loss

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// killedBound is how long the output of a command is waited for that was killed: another may hold it.
const killedBound = time.Second

// fenceTimeout bounds the command: a machine that is switched off by its management
// controller takes a while to say so.
const fenceTimeout = 5 * time.Minute

// Command is a Fence that runs the command for a node. It says that it failed in every other case than that
// it has ended with status 0.
func Command(command []string) Fence {
	return func(ctx context.Context, node *nodev1.NodeInfo) error {
		ctx, cancel := context.WithTimeout(ctx, fenceTimeout)
		defer cancel()
		args := append(append([]string{}, command[1:]...), node.GetName())
		cmd := exec.CommandContext(ctx, command[0], args...)
		cmd.Env = append(os.Environ(), "GODWIT_LOST_NODE="+node.GetName(), "GODWIT_LOST_ADDRESS="+node.GetAddress())
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // what it has started ends with it
		cmd.Cancel = func() error {
			if err := cmd.Process.Signal(syscall.Signal(0)); err != nil { // waited for: the pid may be another group's
				return err
			}
			return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		}
		cmd.WaitDelay = killedBound
		out, err := cmd.CombinedOutput()
		if err != nil {
			return fmt.Errorf("%s (node_loss.fence): %w: %s", command[0], err, tail(out))
		}
		return nil
	}
}

// tail is the end of what a command has written, in one line.
func tail(out []byte) []byte {
	const most = 300
	out = bytes.Join(bytes.Fields(out), []byte(" "))
	return out[max(0, len(out)-most):]
}
