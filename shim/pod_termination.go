package shim

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	agentv1 "godwit.dev/godwit/api/agent/v1"
	"godwit.dev/godwit/shim/bundle"
)

// maxTermination is what is read back of a file, in bytes. The kubelet takes 4 KiB of it.
const maxTermination = 64 << 10

// copyTermination brings the file into the container that its last words go to, and keeps the host's open: what lies
// under its name at the container's end may be something else.
func (c *memberCreation) copyTermination(ctx context.Context, agent Agent) error {
	from := c.bundle.Member.Termination
	if from.Source == "" {
		return nil
	}
	f, err := os.OpenFile(from.Source, os.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("mount %s: %w", from.Destination, err)
	}
	c.task.member.termination, c.task.member.terminationPath = f, from.Destination
	for files, err := range (bundle.Copies{from}).Requests(ctx) {
		if err != nil {
			return err
		}
		for _, file := range files.Files {
			file.Keep = true
		}
		files.Container = c.task.guest
		if _, err := agent.Copy(ctx, files); err != nil {
			return err
		}
	}
	return nil
}

// readTermination writes the container's last words into the host's file, before its end is told. Where ctx was
// cancelled meanwhile it can be called again.
func (m *member) readTermination(ctx context.Context) {
	t := m.t
	f := m.termination
	if f == nil {
		return
	}
	err := m.readBack(ctx, f)
	if err != nil && errors.Is(ctx.Err(), context.Canceled) {
		return
	}
	m.termination = nil
	if err = errors.Join(err, f.Close()); err != nil {
		t.vm.log.Warn("bring the termination log back", "task", t.id, "error", err)
	}
}

func (m *member) readBack(ctx context.Context, f *os.File) error {
	t := m.t
	agent := answering(t.vm)
	if agent == nil {
		return ctx.Err()
	}
	ctx, cancel := context.WithTimeout(ctx, guestBound)
	defer cancel()
	r, err := agent.ReadBack(ctx, &agentv1.ReadBackRequest{Container: t.guest, Path: m.terminationPath,
		Max: maxTermination})
	if err != nil && !errdefs.IsNotFound(err) {
		return err
	}
	data := r.GetData()
	if len(data) > maxTermination {
		return fmt.Errorf("the guest answers %d bytes: %w", len(data), errdefs.ErrInvalidArgument)
	}
	if err := f.Truncate(0); err != nil {
		return err
	}
	_, err = f.WriteAt(data, 0)
	return err
}
