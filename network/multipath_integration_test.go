//go:build integration

package network

import (
	"strings"
	"testing"

	"github.com/containerd/errdefs"
)

// An IPv4 route of another table, by several gateways, which no guest would get, is no obstacle from Read to the last
// Detach. One that the guest needs is refused by its destination before anything is changed; one that appears after
// Read hinders no Detach.
func TestSeveralGateways(t *testing.T) {
	const hops = "nexthop via 10.88.0.1 nexthop via 10.88.0.3"
	for _, c := range []struct {
		name, route string
		refused     bool
	}{
		{"another table", "10.9.0.0/16 table 100 " + hops, false},
		{"the main table", "10.9.0.0/16 " + hops, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFabric(t, 1, 1500)
			ns := f.nodes[0]
			links := mustRead(t, ns)
			add := append([]string{"ip", "route", "add"}, strings.Fields(c.route)...)
			sh(t, ns, add...)
			if _, err := Read(t.Context(), ns); errdefs.IsFailedPrecondition(err) != c.refused || err != nil &&
				!strings.Contains(err.Error(), "10.9.0.0/16") {
				t.Errorf("Read: %v", err)
			}
			a, err := Attach(t.Context(), ns, owner, links)
			if err != nil {
				t.Fatalf("Attach: %v", err)
			}
			if err := a.Detach(t.Context()); err != nil {
				t.Errorf("Detach: %v", err)
			}
			sh(t, ns, append([]string{"ip", "route", "replace"}, add[3:]...)...)
			if err := Detach(t.Context(), ns, links); err != nil {
				t.Errorf("another Detach: %v", err)
			}
			if got := sh(t, ns, "ip", "-4", "route", "show", "table", "all"); !strings.Contains(got, "10.9.0.0/16") {
				t.Errorf("a repeated Detach has removed it: %s", got)
			}
		})
	}
}
