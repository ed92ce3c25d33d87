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

// Resolve finds the VM that ref names: NAMESPACE/REF or REF. REF is an id, else a name, else the beginning of the id of
// one VM. The name is that of a container of this node (nerdctl's label), or of a record. NAMESPACE/ID is always that
// id. Two VMs of one name, or one of that name here and another one with that id elsewhere, are *AmbiguousError: other
// nodes choose what they call theirs. NotFound is answered only if every list was read.
func (c *Client) Resolve(ctx context.Context, ref string) (found *nodev1.VM, err error) {
	vm, err := ParseVM(ref, c.namespace)
	if err != nil {
		return nil, err
	}
	s := &search{client: c, ref: vm, whole: strings.Contains(ref, "/"), prefixed: map[string]*nodev1.VM{}}
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
	whole    bool                  // the namespace was said: what is an id is meant as one
	id       bool                  // there is a record of exactly that id
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
	_, err = node.Recorded(ctx, &nodev1.GetRequest{Vm: s.ref})
	if s.id = err == nil; s.id && s.whole {
		return s.ref, nil
	}
	return nil, ctx.Err()
}

// containers looks at what containerd has on this node.
func (s *search) containers(ctx context.Context) (*nodev1.VM, error) {
	var found []*Container
	_, err := s.client.containerdSocket()
	if s.nameless = errdefs.IsFailedPrecondition(err); !s.nameless {
		found, err = s.client.matching(ctx, s.ref)
	}
	switch {
	case s.nameless && s.id, err != nil && s.id:
		return s.only(ctx, nil)
	case s.nameless:
		return nil, nil
	case err != nil:
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
	if len(named) == 0 && !s.id {
		return nil, nil
	}
	return s.only(ctx, named)
}

// only is the one VM that has ref as its name on this node, or as its id or name by the records. A node may give a VM
// the id that is another one's name. Where the records cannot be read, a name of this node counts, and an id does not.
func (s *search) only(ctx context.Context, named []*Container) (*nodev1.VM, error) {
	several := map[string]*nodev1.VM{}
	err := s.elsewhere(ctx, several)
	if s.id {
		several[key(s.ref)] = s.ref
	}
	for _, f := range named {
		several[key(f.VM)] = f.VM
	}
	switch {
	case len(several) > 1:
		return nil, s.ambiguous(several)
	case len(named) > 0:
		return named[0].vm()
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case err != nil:
		return nil, notWhole("VM", key(s.ref), []error{err})
	}
	return s.ref, nil
}

// elsewhere adds the VMs that have ref as their id or name by the records.
func (s *search) elsewhere(ctx context.Context, several map[string]*nodev1.VM) error {
	node, err := s.client.Node(ctx)
	if err != nil {
		return err
	}
	resp, err := node.VMs(ctx, &nodev1.VMsRequest{Namespace: s.ref.GetNamespace(), Recorded: true})
	if err != nil {
		return record.FromWire(err)
	}
	for _, info := range resp.GetVms() {
		if s.called(info) || key(info.GetVm()) == key(s.ref) && info.GetStatus() != "removed" {
			several[key(info.GetVm())] = info.GetVm()
		}
	}
	return nil
}

// called reports whether ref is the name of a VM that there is.
func (s *search) called(info *nodev1.VMInfo) bool {
	return info.GetVm().GetNamespace() == s.ref.GetNamespace() && info.GetName() == s.ref.GetId() &&
		info.GetStatus() != "removed"
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
	exact, named := s.listed(resp.GetVms())
	if s.whole && exact != nil {
		return exact, nil
	}
	if len(named) > 1 {
		return nil, s.ambiguous(named)
	}
	if exact != nil && (len(named) == 0 || named[key(exact)] != nil) {
		return exact, nil
	}
	for _, vm := range named {
		if len(s.unread) == 0 { // else another one may have the name too
			return vm, nil
		}
	}
	return nil, nil
}

// listed are, of a list, the VM of exactly that id, and those that have ref as their id or name. A beginning of an id
// is noted.
func (s *search) listed(vms []*nodev1.VMInfo) (exact *nodev1.VM, named map[string]*nodev1.VM) {
	named = map[string]*nodev1.VM{}
	for _, info := range vms {
		vm := info.GetVm()
		if vm.GetNamespace() == s.ref.GetNamespace() && info.GetStatus() != "removed" {
			s.known = append(s.known, info.GetName(), vm.GetId())
		}
		switch {
		case vm.GetNamespace() != s.ref.GetNamespace():
		case vm.GetId() == s.ref.GetId():
			if exact = vm; info.GetStatus() != "removed" && !s.whole {
				named[key(vm)] = vm
			}
		case s.called(info):
			named[key(vm)] = vm
		case strings.HasPrefix(vm.GetId(), s.ref.GetId()) && info.GetStatus() != "removed":
			s.prefixed[key(vm)] = vm
		}
	}
	return exact, named
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
	p := &Problem{What: fmt.Sprintf("It is not known whether there is a %s %s.", kind, ref), Cause: class}
	for _, cause := range causes {
		if own, ok := errors.AsType[*Problem](cause); ok {
			p.Why, p.Remedy = p.Why+" "+own.What+" "+own.Why, p.Remedy+" "+own.Remedy
			continue
		}
		why, remedy := sentence(strings.TrimSuffix(cause.Error(), ": "+class.Error())), ""
		if at := strings.Index(why, ". To "); at >= 0 {
			why, remedy = why[:at+1], why[at+1:]
		}
		p.Why, p.Remedy = p.Why+" "+why, p.Remedy+remedy
		if strings.Contains(why, "nothing listens at") {
			p.Remedy += " To name another socket: --socket."
		}
	}
	if strings.TrimSpace(p.Remedy) == "" { // a list that was read in part: an id is not looked for in it
		p.Remedy = "To go on, name it by its whole id, or try again."
	}
	p.Remedy = oneRemedy(p.Remedy)
	return p
}

// oneRemedy joins what several causes need for one end: "To start it: a. To start it: b." is "To start them: a, b."
func oneRemedy(text string) string {
	var ends []string
	means := map[string][]string{}
	for part := range strings.SplitSeq(strings.TrimSuffix(strings.TrimSpace(text), "."), ". ") {
		end, how, _ := strings.Cut(part, ": ")
		if means[end] == nil {
			ends = append(ends, end)
		}
		if how != "" && !slices.Contains(means[end], how) {
			means[end] = append(means[end], how)
		}
	}
	for i, end := range ends {
		how := means[end]
		if len(how) > 1 {
			end = strings.NewReplacer(" it", " them", "another socket", "other sockets").Replace(end)
		}
		if ends[i] = end; len(how) > 0 {
			ends[i] += ": " + strings.Join(how, ", ")
		}
	}
	return strings.Join(ends, ". ") + "."
}
