package shim

import (
	agentv1 "godwit.dev/godwit/api/agent/v1"
	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/network"
)

// agentNICs is the Spec's description in the agent's words.
func agentNICs(nics []spec.NIC) []*agentv1.NIC {
	var out []*agentv1.NIC
	for _, n := range nics {
		a := &agentv1.NIC{Mac: n.MAC, Name: n.Name, Mtu: uint32(n.MTU)}
		for _, p := range n.Addresses {
			a.Addresses = append(a.Addresses, p.String())
		}
		for _, r := range n.Routes {
			a.Routes = append(a.Routes, agentRoute(r))
		}
		out = append(out, a)
	}
	return out
}

func agentRoute(r spec.Route) *agentv1.Route {
	out := &agentv1.Route{
		Scope: uint32(r.Scope), Family: "4",
		Metric: uint32(r.Metric), Mtu: uint32(r.MTU), Advmss: uint32(r.AdvMSS), OnLink: r.OnLink,
	}
	if r.IPv6 || r.Destination.Addr().Is6() {
		out.Family = "6"
	}
	if r.Destination.IsValid() {
		out.Destination = r.Destination.String()
	}
	if r.Gateway.IsValid() {
		out.Gateway = r.Gateway.String()
	}
	if r.Source.IsValid() {
		out.Source = r.Source.String()
	}
	return out
}

// spoofs is what the guest may name as its source, by the node's configuration. A container image
// is configured by the agent, with the addresses of its NICs alone; what a VM disk does is its own.
func (vm *VM) spoofs() string {
	switch {
	case vm.host.Config.Network.Spoof != "":
		return vm.host.Config.Network.Spoof
	case vm.spec().VMDisk != nil:
		return network.SpoofAllow
	}
	return network.SpoofDeny
}

// networkIs remembers what the guest is connected to and says once if that is nothing.
func (vm *VM) networkIs(kind string) {
	vm.mu.Lock()
	vm.nic.kind = kind
	vm.mu.Unlock()
	if kind == "loopback" {
		vm.log.Info("the task's network namespace has no interface: the guest has loopback only")
	}
}
