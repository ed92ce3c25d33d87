package shim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/containerd/containerd/v2/pkg/identifiers"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	agentv1 "godwit.dev/godwit/api/agent/v1"
	machinev1 "godwit.dev/godwit/api/machine/v1"
)

// toldDir is where a container of a pod finds of which snapshots of its VM somebody waits to hear.
const toldDir = "/run/godwit/snapshots/"

// maxTold is the length of each text of a snapshot that is told.
const maxTold = 1024

// snapshotFile is the file of a snapshot that is durable.
type snapshotFile struct {
	Snapshot string `json:"snapshot"`
	UID      string `json:"uid"`
	Digest   string `json:"digest"`
}

// word is an order to tell the workload of a snapshot.
type word struct{ vm *VM }

// tell writes into each container that runs that a snapshot is durable. What the guest makes of the file is its own.
func (w word) tell(ctx context.Context, r *machinev1.TellRequest) error {
	vm, ref := w.vm, r.GetRef()
	if err := identifiers.Validate(ref.GetOperation()); err != nil {
		return fmt.Errorf("ref.operation: %w", err)
	}
	if len(r.GetSnapshot()) > maxTold || len(r.GetDigest()) > maxTold {
		return fmt.Errorf("snapshot, digest: longer than %d bytes: %w", maxTold, errdefs.ErrInvalidArgument)
	}
	text, err := json.Marshal(snapshotFile{r.GetSnapshot(), ref.GetOperation(), r.GetDigest()})
	if err != nil {
		return err
	}
	containers, over, err := w.mayTell(ref)
	if err != nil {
		return fmt.Errorf("tell VM %s of snapshot %s: %w", vm.id, r.GetDigest(), err)
	}
	defer over()
	ctx, cancel := context.WithTimeout(ctx, guestBound)
	defer cancel()
	agent := vm.guest()
	if agent == nil {
		return fmt.Errorf("tell VM %s of snapshot %s: its guest is not reached: %w", vm.id, r.GetDigest(),
			errdefs.ErrUnavailable)
	}
	var errs []error
	for _, id := range containers {
		_, err := agent.Copy(ctx, &agentv1.CopyRequest{Container: id, Files: []*agentv1.File{{Replace: true,
			Path: toldDir + ref.GetOperation(), Mode: unix.S_IFREG | 0o644, Data: append(text, '\n')}}})
		if _, runs := vm.pod.woken()[id]; err != nil && runs { // else it has ended meanwhile
			errs = append(errs, fmt.Errorf("tell container %s of VM %s of snapshot %s: %w", id, vm.id, r.GetDigest(), err))
		}
	}
	return errors.Join(errs...)
}

// mayTell answers the containers that run, by the guest's ids. Until over is called no operation gets the VM.
func (w word) mayTell(ref *machinev1.Ref) (containers []string, over func(), err error) {
	vm := w.vm
	if !vm.isPod() {
		return nil, nil, fmt.Errorf("it is no pod: give its container the annotation godwit.dev/notify: %w",
			errdefs.ErrNotImplemented)
	}
	containers = slices.Sorted(maps.Keys(vm.pod.woken()))
	vm.mu.Lock()
	defer vm.mu.Unlock()
	switch {
	case vm.state != Running:
		return nil, nil, fmt.Errorf("it is %s: %w", vm.state, vm.wrongState())
	case vm.under(ref) != nil:
		return nil, nil, vm.under(ref)
	case len(containers) == 0:
		return nil, nil, fmt.Errorf("no container of it runs: %w", errdefs.ErrFailedPrecondition)
	}
	return containers, vm.call(), nil
}
