package shim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	runcoptions "github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/errdefs"
	"github.com/google/uuid"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/anypb"

	agentv1 "godwit.dev/godwit/api/agent/v1"
	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/internal/retry"
	"godwit.dev/godwit/shim/journal"
)

// pointer is all that containerd's checkpoint of a task holds: which snapshot it is. What it
// says besides is for people; the record decides.
type pointer struct {
	Version    int    `json:"version"`
	VM         string `json:"vm"`
	Digest     string `json:"digest"`
	Repository string `json:"repository"`
	Operation  string `json:"operation"`
}

const (
	pointerFile    = "godwit-checkpoint.json"
	pointerVersion = 1
	pointerMax     = 64 << 10
	// pollOrder is the pause between two looks at an operation.
	pollOrder = 50 * time.Millisecond
)

// Checkpoint takes a checkpoint and writes where it is. containerd's client has paused the
// task and resumes it: the VM stands still meanwhile, which godwit checkpoint spares it.
func (s *Service) Checkpoint(ctx context.Context, r *taskapi.CheckpointTaskRequest) (*emptyResponse, error) {
	return on(s, r.GetID(), func(t *Task) (*emptyResponse, error) {
		vm := t.vm
		if err := refuseOptions(r.GetOptions()); err != nil {
			return nil, fmt.Errorf("checkpoint task %s: %w", vm.id, err)
		}
		p, err := t.orderCheckpoint(ctx)
		if err == nil {
			err = p.write(r.GetPath())
		}
		if err != nil {
			return nil, fmt.Errorf("checkpoint task %s: %w", vm.id, err)
		}
		return &emptyResponse{}, nil
	})
}

// refuseOptions names what was asked for in runc's options and does not exist here.
func refuseOptions(any *anypb.Any) error {
	o := new(runcoptions.CheckpointOptions)
	if !any.MessageIs(o) || any.UnmarshalTo(o) != nil {
		return nil
	}
	switch {
	case o.GetExit():
		return fmt.Errorf("ending it besides: use godwit hibernate: %w", errdefs.ErrNotImplemented)
	case o.GetImagePath() != "" || o.GetWorkPath() != "":
		return fmt.Errorf("an image or work path: the snapshot goes to the node's registry: %w", errdefs.ErrNotImplemented)
	}
	return nil
}

// endedAs is the error of an operation that has ended, and has not succeeded.
func endedAs(op *nodev1.Operation) error {
	class := record.ClassOf(op.GetClass())
	if class == nil {
		class = errdefs.ErrAborted
	}
	return fmt.Errorf("operation %s: %s: %w", op.GetId(), op.GetReason(), class)
}

// orderCheckpoint has the node's daemon take one, as an operation like any other.
func (t *Task) orderCheckpoint(ctx context.Context) (*pointer, error) {
	vm := t.vm
	orders := vm.host.Orders
	if orders == nil {
		return nil, fmt.Errorf("the node keeps no records, which would list the snapshot: %w", errdefs.ErrFailedPrecondition)
	}
	id := "task-" + uuid.NewString()
	status, err := orders.Checkpoint(ctx, &nodev1.CheckpointRequest{Vm: vm.name(), Operation: id,
		Paused: vm.inState(Paused)})
	// A daemon that restarts goes on with it, and containerd's client could resume nothing
	// meanwhile: it is waited for, as long as an operation may take.
	until := time.Now().Add(vm.host.operationBound(0))
	for ordered := err == nil; ordered && (err == nil && !status.GetSettled() || errdefs.IsUnavailable(unavailable(err)) &&
		time.Now().Before(until)); {
		if retry.Sleep(ctx, pollOrder); ctx.Err() != nil {
			return nil, fmt.Errorf("operation %s goes on: %w", id, ctx.Err())
		}
		status, err = orders.Status(ctx, &nodev1.StatusRequest{Operation: id})
	}
	if err != nil {
		return nil, unavailable(err)
	}
	op := status.GetOperation()
	if op.GetPhase() != nodev1.Phase_PHASE_SUCCEEDED {
		return nil, endedAs(op)
	}
	return &pointer{pointerVersion, vm.namespace + "/" + vm.id, op.GetDigest(), op.GetRepository(), op.GetId()}, nil
}

func (p *pointer) write(dir string) error {
	if dir == "" {
		return fmt.Errorf("path is empty: %w", errdefs.ErrInvalidArgument)
	}
	data, err := json.Marshal(p)
	if err != nil {
		return err
	}
	// The directory may be anybody's (ctr checkpoint --image-path): what lies there under that
	// name is replaced, and no link of it is followed.
	path := filepath.Join(dir, pointerFile)
	if err := removeFile(path); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Close())
}

// openPointer opens no link and waits for no pipe: the directory may be anybody's.
func openPointer(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, pointerFile), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a file but %v", f.Name(), info.Mode())
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// readCheckpoint makes a Create with a checkpoint the order to restore that snapshot.
func (c *creation) readCheckpoint(intent *record.Intent) error {
	dir := c.req.GetCheckpoint()
	if dir == "" {
		return nil
	}
	f, err := openPointer(dir)
	if err != nil {
		return fmt.Errorf("checkpoint %s is none of this runtime's: %w: %w", dir, err, errdefs.ErrInvalidArgument)
	}
	defer f.Close()
	p, vm := new(pointer), c.vm.namespace+"/"+c.vm.id
	err = json.NewDecoder(io.LimitReader(f, pointerMax)).Decode(p)
	switch {
	case err != nil || p.Digest == "":
		return fmt.Errorf("read checkpoint %s: it names no snapshot: %w", dir, errors.Join(err, errdefs.ErrInvalidArgument))
	case p.Version != pointerVersion:
		return fmt.Errorf("read checkpoint %s: it has version %d, this build knows %d: %w", dir, p.Version, pointerVersion,
			errdefs.ErrInvalidArgument)
	case p.VM != vm:
		return fmt.Errorf("restore checkpoint %s as VM %s: it is of VM %s, and no VM becomes another one: %w", dir, vm, p.VM,
			errdefs.ErrFailedPrecondition)
	case intent.Set():
		return fmt.Errorf("restore checkpoint %s: an operation orders snapshot %s: %w", dir, intent.Digest,
			errdefs.ErrInvalidArgument)
	}
	intent.Checkpoint = p.Digest
	return nil
}

// giveUpOwn ends this node's own claim before a checkpoint is restored over it: what an
// earlier task left here has been freed, so that nothing runs.
func (c *creation) giveUpOwn(ctx context.Context) error {
	if c.record.GetOwner().GetNode() == "" {
		return nil
	}
	rec, err := c.host.Records.Disown(ctx, &nodev1.DisownRequest{
		Vm: c.vm.name(), Node: c.host.Config.Node, Generation: c.record.GetGeneration(), Uid: c.record.GetUid(),
	})
	if err != nil {
		return unavailable(err)
	}
	c.record = rec
	return nil
}

// strayBound is how long the end of a process may take that no client asks for any more.
const strayBound = 30 * time.Second

// unknownExecs are the processes of execs that no client knows any more: a checkpoint has caught them, and their task
// is gone, or they had ended before the VM moved.
func unknownExecs(all []*agentv1.Process, known []journal.MovedExec) (strays []*agentv1.Process) {
	for _, p := range all {
		if p.GetId() != "" && !slices.ContainsFunc(known, func(e journal.MovedExec) bool { return e.Guest == p.GetId() }) {
			strays = append(strays, p)
		}
	}
	return strays
}

// endUnknownExecs ends those that run, and has the guest forget all of them.
func (t *Task) endUnknownExecs(all []*agentv1.Process) {
	vm := t.vm
	ctx, cancel := context.WithTimeout(vm.life, strayBound)
	defer cancel()
	agent := vm.guest()
	for _, p := range all {
		_, err := agent.Kill(ctx, &agentv1.KillRequest{Id: p.GetId(), Signal: 9})
		if err == nil || errdefs.IsFailedPrecondition(err) || errdefs.IsNotFound(err) { // the last has ended
			_, err = agent.Wait(ctx, &agentv1.WaitRequest{Id: p.GetId()})
		}
		if err == nil {
			_, err = agent.Remove(ctx, &agentv1.RemoveRequest{Id: p.GetId()})
		}
		vm.log.Info("ended a process of an exec that no client knows any more", "process", p.GetId(), "error", err)
	}
}
