package sandboxapi

import (
	"context"
	"fmt"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"golang.org/x/sys/unix"

	"godwit.dev/godwit/internal/retry"
)

// pod is the one sandbox of a shim.
type pod struct {
	id      string
	at      time.Time             // of its Create
	created chan struct{}         // closed when its Create is over
	gone    chan struct{}         // closed when its task is deleted, or was never made
	exit    *taskapi.WaitResponse // of a task that was; set before gone is closed
}

func (s *Service) begin(id string) (*pod, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pod != nil {
		return nil, fmt.Errorf("create sandbox %s: this shim has sandbox %s: %w", id, s.pod.id, errdefs.ErrAlreadyExists)
	}
	s.pod = &pod{id: id, at: time.Now(), created: make(chan struct{}), gone: make(chan struct{})}
	return s.pod, nil
}

// forget takes back begin: no task was made.
func (s *Service) forget(p *pod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pod = nil
	close(p.gone)
}

func (s *Service) find(id string) (*pod, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pod == nil || s.pod.id != id {
		return nil, fmt.Errorf("sandbox %s: %w", id, errdefs.ErrNotFound)
	}
	return s.pod, nil
}

// stop ends the task, unless it has ended, and waits until it is deleted.
func (s *Service) stop(ctx context.Context, p *pod) error {
	select {
	case <-p.created:
	case <-ctx.Done():
		return ctx.Err()
	}
	_, err := s.tasks.Kill(ctx, &taskapi.KillRequest{ID: p.id, Signal: uint32(unix.SIGKILL)})
	if err = errgrpc.ToNative(err); err != nil && !errdefs.IsNotFound(err) {
		return err
	}
	select {
	case <-p.gone:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// deleted reports whether a task that is not there was made before. What has deleted it tells so in a moment.
func (p *pod) deleted(ctx context.Context) bool {
	select {
	case <-p.created:
	default:
		return false
	}
	select {
	case <-p.gone:
		return p.exit != nil
	case <-ctx.Done():
		return false
	}
}

// deletePause is between two tries to delete a task that has ended: an operation may still hold its VM.
const deletePause = time.Second

// reap deletes the task once it has ended. For a pause container the CRI plugin does so, with the sandbox API no client
// does. RAM and disks of the VM would stay until the pod is removed. The sandbox ends with its task's Delete, as with a
// pause container: containerd stops no sandbox that has ended, and a VMM that does not die may live after its task.
func (p *pod) reap(ctx context.Context, s *Service) {
	exit, err := s.tasks.Wait(ctx, &taskapi.WaitRequest{ID: p.id})
	if err != nil {
		if ctx.Err() == nil {
			s.log.Error("wait for sandbox", "id", p.id, "error", err)
		}
		return
	}
	for ctx.Err() == nil {
		_, err := s.tasks.Delete(ctx, &taskapi.DeleteRequest{ID: p.id})
		if err = errgrpc.ToNative(err); err == nil || errdefs.IsNotFound(err) {
			p.exit = exit
			close(p.gone)
			return
		}
		s.log.Warn("delete sandbox", "id", p.id, "error", err)
		retry.Sleep(ctx, deletePause)
	}
}
