package client

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/internal/errno"
	"godwit.dev/godwit/internal/nearest"
)

// Resolve finds the VM that ref names: NAMESPACE/REF or REF. REF is an id. Else it is the name of a container of this
// node (nerdctl's label). Else it is the beginning of the id of one VM. NotFound is answered only if every list was
// read. Several VMs: *AmbiguousError.
func (c *Client) Resolve(ctx context.Context, ref string) (found *nodev1.VM, err error) {
	vm, err := ParseVM(ref, c.namespace)
	if err != nil {
		return nil, err
	}
	s := &search{client: c, ref: vm, prefixed: map[string]*nodev1.VM{}}
	for _, look := range []func(context.Context) (*nodev1.VM, error){s.records, s.containers, s.vms} {
		if found, err = look(ctx); found != nil || err != nil {
			break
		}
	}
	if found == nil && err == nil {
		found, err = s.outcome(ctx)
	}
	if err != nil {
		return nil, err
	}
	c.names.learn(found, ref)
	return found, nil
}

// search of one VM.
type search struct {
	client   *Client
	ref      *nodev1.VM
	prefixed map[string]*nodev1.VM // whose ids begin with ref, by NAMESPACE/ID
	unread   []error               // why lists are not whole
	nameless bool                  // no containerd was asked
	known    []string              // names and ids of VMs, for what may have been meant
}

func key(vm *nodev1.VM) string { return vm.GetNamespace() + "/" + vm.GetId() }

// records looks for the VM of exactly that id, anywhere in the cluster. A daemon that cannot be asked is asked again
// for its list, which then says why.
func (s *search) records(ctx context.Context) (*nodev1.VM, error) {
	node, err := s.client.Node(ctx)
	if err != nil {
		return nil, nil
	}
	if _, err = node.Recorded(ctx, &nodev1.GetRequest{Vm: s.ref}); err == nil {
		return s.ref, nil
	}
	return nil, ctx.Err()
}

// containers looks at what containerd has on this node.
func (s *search) containers(ctx context.Context) (*nodev1.VM, error) {
	if _, err := s.client.containerdSocket(); errdefs.IsFailedPrecondition(err) {
		s.nameless = true
		return nil, nil
	}
	found, err := s.client.matching(ctx, s.ref)
	if err != nil {
		s.unread = append(s.unread, err)
		return nil, ctx.Err()
	}
	var named []*Container
	for _, f := range found {
		switch {
		case f.VM.GetId() == s.ref.GetId():
			return f.vm()
		case f.Name == s.ref.GetId():
			named = append(named, f)
		case f.isVM(): // its id begins so
			s.prefixed[key(f.VM)] = f.VM
		}
	}
	switch len(named) {
	case 0:
		return nil, nil
	case 1:
		return named[0].vm()
	}
	several := map[string]*nodev1.VM{}
	for _, f := range named {
		several[key(f.VM)] = f.VM
	}
	return nil, s.ambiguous(several)
}

// vms looks at the list of the whole cluster. What was removed is found by its whole id only.
func (s *search) vms(ctx context.Context) (*nodev1.VM, error) {
	node, err := s.client.Node(ctx)
	if err != nil {
		s.unread = append(s.unread, err)
		return nil, ctx.Err()
	}
	resp, err := node.VMs(ctx, &nodev1.VMsRequest{Namespace: s.ref.GetNamespace()})
	if err != nil {
		s.unread = append(s.unread, record.FromWire(err))
		return nil, ctx.Err()
	}
	if w := resp.GetWarning(); w != "" {
		s.unread = append(s.unread, fmt.Errorf("%s: %w", w, errdefs.ErrUnavailable))
	}
	for _, info := range resp.GetVms() {
		vm := info.GetVm()
		if vm.GetNamespace() == s.ref.GetNamespace() && info.GetStatus() != "removed" {
			s.known = append(s.known, info.GetName(), vm.GetId())
		}
		switch {
		case vm.GetNamespace() != s.ref.GetNamespace():
		case vm.GetId() == s.ref.GetId():
			return vm, nil
		case strings.HasPrefix(vm.GetId(), s.ref.GetId()) && info.GetStatus() != "removed":
			s.prefixed[key(vm)] = vm
		}
	}
	return nil, nil
}

// outcome is what the beginnings of ids say, once all lists were looked at.
func (s *search) outcome(ctx context.Context) (*nodev1.VM, error) {
	switch {
	case len(s.prefixed) > 1:
		return nil, s.ambiguous(s.prefixed)
	case len(s.unread) > 0:
		return nil, notWhole("VM", key(s.ref), s.unread)
	case len(s.prefixed) == 1:
		for _, vm := range s.prefixed {
			return vm, nil
		}
	}
	p := &Problem{What: fmt.Sprintf("There is no VM %q in namespace %s.", s.ref.GetId(), s.ref.GetNamespace()),
		Remedy: "To see all VMs: godwit ps -a -A.", Cause: errdefs.ErrNotFound}
	if all, err := s.client.containers(ctx, s.ref.GetNamespace()); err == nil {
		for _, f := range all {
			if f.isVM() {
				s.known = append(s.known, f.Name, f.VM.GetId())
			}
		}
	}
	if p.Why = nearest.Question(s.ref.GetId(), slices.DeleteFunc(s.known, empty)); p.Why == "" && s.nameless {
		p.Why = "Names were not looked at: name containerd's socket with --containerd."
	}
	return nil, p
}

func empty(s string) bool { return s == "" }

func (s *search) ambiguous(several map[string]*nodev1.VM) error {
	return &AmbiguousError{Kind: "VM", Ref: s.ref.GetId(), Candidates: slices.Sorted(maps.Keys(several))}
}

// notWhole says that a list could not be read: more may be there. Its class is that of the first cause, and never
// NotFound.
func notWhole(kind, ref string, causes []error) error {
	class := errno.Resolve(causes[0])
	if errdefs.IsNotFound(class) || errors.Is(class, errdefs.ErrUnknown) {
		class = errdefs.ErrUnavailable
	}
	texts := make([]string, 0, len(causes))
	for _, cause := range causes {
		texts = append(texts, strings.TrimSuffix(cause.Error(), ": "+class.Error()))
	}
	return fmt.Errorf("find %s %s: not all lists could be read: %s: %w", kind, ref, strings.Join(texts, "; "), class)
}
