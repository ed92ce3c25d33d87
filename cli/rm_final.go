package cli

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"godwit.dev/godwit/api/moves"
	"godwit.dev/godwit/api/record"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/cli/screen"
)

// finalOrder is what godwit rm was told about a final snapshot.
type finalOrder struct{ final, endExecs, detach, cancel bool }

// deletionPoll is how often a deletion is looked at: it may wait for minutes.
const deletionPoll = 200 * time.Millisecond

// order orders the deletion and follows it. It belongs to the VM's node: interrupting this does
// not end it.
func (o *finalOrder) order(cmd *cobra.Command, opts *options, node nodev1.NodeService, vm *nodev1.VM) error {
	id := uuid.NewString()
	rec, err := node.Delete(cmd.Context(),
		&nodev1.DeleteRequest{Vm: vm, Deletion: &nodev1.Deletion{Id: id, EndExecs: o.endExecs}})
	if err != nil {
		return record.FromWire(err)
	}
	said, patience := uint32(0), opts.waitForDaemon(cmd, func() {})
	for !o.detach && waits(rec, id) {
		if d := rec.GetDeletion(); d.GetTries() > said && !opts.machine() {
			said = d.GetTries()
			_ = tell(cmd.ErrOrStderr(), "godwit: the VM runs on; its final snapshot is tried again (godwit rm --cancel "+
				"calls it off); try %d: %s\n", said, d.GetReason())
		}
		if rec, err = look(cmd.Context(), &patience, node, vm); err != nil {
			return err
		}
	}
	if err := failure(rec, id); err != nil {
		return err
	}
	return opts.print(cmd, screen.Result{Value: rec, Names: []string{fullName(vm)}, Text: o.told(rec)})
}

// look is the next answer, some time later.
func look(ctx context.Context, patience *moves.Patience, node nodev1.NodeService, vm *nodev1.VM) (rec *nodev1.Record,
	err error) {
	select {
	case <-ctx.Done():
	case <-time.After(deletionPoll):
	}
	err = patience.Ask(ctx, func(ctx context.Context) (err error) {
		rec, err = node.Recorded(ctx, &nodev1.GetRequest{Vm: vm})
		return record.FromWire(err)
	})
	switch {
	case ctx.Err() != nil:
		return nil, fmt.Errorf("the deletion of VM %s/%s goes on in godwitd (godwit rm --cancel calls it off): %w",
			vm.GetNamespace(), vm.GetId(), ctx.Err())
	case err != nil:
		return nil, fmt.Errorf("follow the deletion of VM %s/%s: %w", vm.GetNamespace(), vm.GetId(), err)
	}
	return rec, nil
}

// waits reports whether the order stands and may still succeed.
func waits(rec *nodev1.Record, id string) bool {
	d := rec.GetDeletion()
	return d.GetId() == id && !record.Stuck(d)
}

// failure says why the order has not led to a snapshot; nil while it may.
func failure(rec *nodev1.Record, id string) error {
	vm, d := rec.GetVm().GetNamespace()+"/"+rec.GetVm().GetId(), rec.GetDeletion()
	switch {
	case d.GetId() == id && record.Stuck(d):
		class := record.ClassOf(d.GetClass())
		if class == nil {
			class = errdefs.ErrUnknown
		}
		return fmt.Errorf("final snapshot of VM %s: %s; the VM stays, and is not tried again until that is ordered anew: %w",
			vm, plain(d.GetReason()), class)
	case d.GetId() == id || rec.GetOwner().GetDigest() != "":
		return nil
	case d != nil:
		return fmt.Errorf("final snapshot of VM %s: another order has taken the place of this one: %w", vm,
			errdefs.ErrAborted)
	case rec.GetOwner().GetNode() == "":
		return fmt.Errorf("final snapshot of VM %s: its task was deleted before there was one: %w", vm, errdefs.ErrAborted)
	}
	return fmt.Errorf("final snapshot of VM %s: the order stands no more, and node %s has the VM: %w", vm,
		rec.GetOwner().GetNode(), errdefs.ErrAborted)
}

func (*finalOrder) told(rec *nodev1.Record) func(io.Writer) error {
	vm := fullName(rec.GetVm())
	if rec.GetDeletion() != nil {
		return said("%s: to be removed after a final snapshot (godwit ps)", vm)
	}
	return said("%s removed; its last state is %s: godwit wake %s has it back, godwit rm --force %s gives it up", vm,
		rec.GetOwner().GetDigest(), vm, vm)
}

func callOff(cmd *cobra.Command, opts *options, node nodev1.NodeService, vm *nodev1.VM) error {
	rec, err := node.Delete(cmd.Context(), &nodev1.DeleteRequest{Vm: vm, Cancel: true})
	if err != nil {
		return record.FromWire(err)
	}
	return opts.print(cmd, screen.Result{Value: rec, Names: []string{fullName(vm)},
		Text: said("%s: no deletion is ordered any more", fullName(vm))})
}
