package shim

import (
	agentv1 "godwit.dev/godwit/api/agent/v1"
	"godwit.dev/godwit/api/spec"
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
