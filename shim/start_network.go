package shim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/network"
	"godwit.dev/godwit/shim/journal"
	"godwit.dev/godwit/shim/steps"
)

// attach reads what CNI has made in the namespace and connects a tap to each interface. A namespace without interfaces,
// or no namespace, leaves the guest with loopback.
func (s *starting) attach(ctx context.Context, u *steps.Undo) error {
	vm, j := s.vm, s.vm.journal.Load()
	var links []network.Link
	if j.NetNS != "" {
		var err error
		if links, err = vm.host.Network.Read(ctx, j.NetNS); err != nil {
			return err
		}
	}
	if len(links) == 0 {
		if len(j.Spec.NICs) > 0 {
			return fmt.Errorf("the VM has %d NICs, its namespace no interface: wake it with godwit wake, or run it with a "+
				"network (ctr run --cni): %w", len(j.Spec.NICs), errdefs.ErrFailedPrecondition)
		}
		vm.nic.connectedTo("loopback")
		return nil
	}
	links, changed, err := s.describe(links)
	if err != nil {
		return err
	}
	links, names, err := s.prepareDHCP(ctx, j.NetNS, links)
	if err != nil {
		return err
	}
	owner := network.Owner{Node: vm.host.Config.NodeID(), VM: vm.namespace + "/" + vm.id, Generation: j.Generation,
		Attempt: j.Attempt}
	if links, err = network.Own(owner, links); err != nil {
		return err
	}
	for i := range links {
		links[i].Spoof = s.allowedSources()
	}
	s.readdress = changed
	s.plugs = s.mustPlug()
	err = vm.write(func(j *journal.Journal) {
		sp := j.Spec.Clone()
		sp.NICs = sp.NICs[:0]
		for _, l := range links {
			sp.NICs = append(sp.NICs, l.NIC)
		}
		if names != nil {
			sp.VMDisk.DNS, sp.VMDisk.Search = names.DNS, names.Search
		}
		j.Spec, j.Links, j.Names, j.Unplugged = sp, links, names, s.plugs
	})
	if err != nil {
		return err
	}
	a, err := vm.host.Network.Attach(ctx, j.NetNS, owner, links)
	if err != nil {
		return err
	}
	vm.nic.attach(a)
	u.Add("detach network", func(ctx context.Context) error {
		vm.nic.attach(nil)
		return errors.Join(a.Close(), detach(ctx, vm.host, j, links))
	})
	vm.nic.connectedTo("cni")
	return vm.nic.serveDHCP(vm.life, vm.journal.Load())
}

// describe makes the NICs of a new VM from its interfaces, and gives those of a
// restored VM the addresses found here.
func (s *starting) describe(links []network.Link) ([]network.Link, bool, error) {
	links = slices.Clone(links)
	if s.vm.origin.restored {
		nics, changed, err := network.Merge(s.vm.spec().NICs, links)
		if err != nil {
			return nil, false, err
		}
		if changed && s.vm.spec().KeepsAddresses() {
			return nil, false, otherAddresses(s.vm.spec().NICs, nics)
		}
		for i := range links {
			links[i].NIC = nics[i]
		}
		return links, changed, nil
	}
	for i := range links {
		links[i].NIC.ID, links[i].NIC.Slot = fmt.Sprintf("net%d", i), firstNICSlot+i
	}
	return links, false, nil
}

// otherAddresses is the error of a VM that keeps its addresses, where the network gives it others: its connections
// would end.
func otherAddresses(had, has []spec.NIC) error {
	text := func(nics []spec.NIC) string {
		var all []string
		for _, n := range nics {
			for _, a := range n.Addresses {
				all = append(all, n.Name+" "+a.String())
			}
			for _, r := range n.Routes {
				if r.Gateway.IsValid() {
					all = append(all, "via "+r.Gateway.String())
				}
			}
		}
		return strings.Join(all, ", ")
	}
	return fmt.Errorf("annotation %s: the VM keeps its addresses (%s), and the network gives it others here (%s): have "+
		"the network give it those that it has: %w", spec.AnnotationNetwork, text(had), text(has),
		errdefs.ErrFailedPrecondition)
}

// prepareDHCP prepares the links of a guest that asks for its addresses: the sinks that lead
// its questions here, and what the answers say.
func (s *starting) prepareDHCP(ctx context.Context, netns string, links []network.Link) ([]network.Link, *journal.Names,
	error) {
	vm := s.vm
	if vm.spec().HasAgent() {
		return links, nil, nil
	}
	hostname := ""
	if c := vm.spec().Container; c != nil && c.OCI != nil {
		hostname = c.OCI.Hostname
	}
	names, err := namesOf(hostname, vm.owner.bundle.Copies)
	if err != nil {
		return nil, nil, err
	}
	// What a wake makes of a container has no such file.
	if told := vm.spec().VMDisk; vm.origin.restored && len(names.DNS)+len(names.Search) == 0 {
		names.DNS, names.Search = told.DNS, told.Search
	}
	if links, err = vm.host.Network.FindGateways(ctx, netns, links); err != nil {
		return nil, nil, err
	}
	for i := range links {
		if len(links[i].NIC.Addresses) > 0 {
			links[i].Sink = fmt.Sprintf("dhcp%d", i)
		}
	}
	return links, names, nil
}

// allowedSources is what the guest may name as its source, by the node's configuration. A container image
// is configured by the agent, with the addresses of its NICs alone; what a VM disk does is its own.
func (s *starting) allowedSources() string {
	vm := s.vm
	switch {
	case vm.host.Config.Network.Spoof != "":
		return vm.host.Config.Network.Spoof
	case vm.spec().VMDisk != nil:
		return network.SpoofAllow
	}
	return network.SpoofDeny
}
