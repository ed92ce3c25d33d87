package node

import (
	"context"
	"errors"
	"log/slog"

	"github.com/containerd/errdefs"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// TellNames has the records know what the VMs of this node are called: a person, or nerdctl, may have written the label
// of a container. A container without a name gets the one of its record, unless another container of this node has it.
func (s *Service) TellNames(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, recordsTimeout)
	defer cancel()
	resp, err := s.Records.List(ctx, &nodev1.ListRequest{Node: s.Config.Node})
	if err != nil || len(resp.GetRecords()) == 0 || s.Containers == nil {
		return err
	}
	all, err := s.Containers(ctx)
	errs := []error{err} // of namespaces that could not be read; a container that was not seen is left alone
	here := map[string]*nodev1.VMInfo{}
	for _, c := range all {
		here[key(c.GetVm())] = c
	}
	for _, rec := range resp.GetRecords() {
		c := here[key(rec.GetVm())]
		if c == nil || rec.GetOwner().GetNode() != s.Config.Node || moves(rec) {
			continue
		}
		err := s.tellName(ctx, rec, c.GetName())
		if errdefs.IsNotImplemented(err) { // a controller of the release before
			break
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func (s *Service) tellName(ctx context.Context, rec *nodev1.Record, label string) error {
	vm, called := rec.GetVm(), label
	if called == vm.GetId() {
		called = ""
	}
	switch {
	case called == rec.GetName():
		return nil
	case label == "" && s.Label != nil:
		return s.Label(ctx, vm, rec.GetName())
	}
	_, err := s.Records.Name(ctx, &nodev1.NameRequest{Vm: vm, Uid: rec.GetUid(), Node: s.Config.Node, Name: called})
	if errdefs.IsInvalidArgument(err) || errdefs.IsFailedPrecondition(err) { // another program's form; an operation since
		slog.DebugContext(ctx, "name of a VM", "vm", key(vm), "error", err)
		return nil
	}
	return err
}
