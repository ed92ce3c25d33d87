package network

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"

	"godwit.dev/godwit/api/spec"
)

func nic(id, name, mac string, mtu int, addresses ...string) spec.NIC {
	n := spec.NIC{ID: id, Name: name, MAC: mac, MTU: mtu}
	for _, a := range addresses {
		n.Addresses = append(n.Addresses, netip.MustParsePrefix(a))
	}
	return n
}

func found(n spec.NIC) Link {
	return Link{Interface: n.Name, NIC: n, Found: Found{MAC: n.MAC, MTU: n.MTU}}
}

func TestMerge(t *testing.T) {
	slot := nic("net0", "eth0", "02::guest", 1450, "10.0.0.2/24")
	slot.Slot = 7
	moved := slot
	moved.Addresses = []netip.Prefix{netip.MustParsePrefix("10.9.0.2/24")}
	tests := []struct {
		name    string
		old     []spec.NIC
		now     []Link
		want    []spec.NIC
		changed bool
		errors  []string // what the refusal must say
	}{
		{name: "none"},
		{name: "same addresses", old: []spec.NIC{slot},
			now:  []Link{found(nic("net0", "eth0", "02::other", 1450, "10.0.0.2/24"))},
			want: []spec.NIC{slot}},
		{name: "other addresses, larger MTU", old: []spec.NIC{slot},
			now:  []Link{found(nic("net0", "eth0", "02::other", 9000, "10.9.0.2/24"))},
			want: []spec.NIC{moved}, changed: true},
		{name: "by name", old: []spec.NIC{nic("net0", "eth0", "m0", 1500), nic("net1", "net1", "m1", 1500)},
			now:  []Link{found(nic("net0", "net1", "x", 1500)), found(nic("net1", "eth0", "y", 1500))},
			want: []spec.NIC{nic("net1", "net1", "m1", 1500), nic("net0", "eth0", "m0", 1500)}},
		{name: "by position", old: []spec.NIC{nic("net0", "eth0", "m0", 1500), nic("net1", "net1", "m1", 1500)},
			now:  []Link{found(nic("net0", "ens3", "x", 1500)), found(nic("net1", "eth0", "y", 1500))},
			want: []spec.NIC{nic("net0", "eth0", "m0", 1500), nic("net1", "net1", "m1", 1500)}},
		{name: "fewer interfaces", old: []spec.NIC{slot}, errors: []string{"1", "0"}},
		{name: "more interfaces", old: []spec.NIC{slot},
			now:    []Link{found(slot), found(nic("net1", "net1", "x", 1500))},
			errors: []string{"has 1", "2 interfaces"}},
		{name: "smaller MTU", old: []spec.NIC{slot},
			now:    []Link{found(nic("net0", "eth0", "x", 1400, "10.0.0.2/24"))},
			errors: []string{"net0", "1450", "1400"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, changed, err := Merge(tt.old, tt.now)
			if tt.errors != nil {
				if !errdefs.IsFailedPrecondition(err) {
					t.Fatalf("error: %v", err)
				}
				for _, s := range tt.errors {
					if !strings.Contains(err.Error(), s) {
						t.Errorf("error lacks %q: %v", s, err)
					}
				}
				return
			}
			if err != nil || changed != tt.changed {
				t.Errorf("changed %v, error %v", changed, err)
			}
			if len(got)+len(tt.want) == 0 {
				return
			}
			if diff := cmp.Diff(tt.want, got, netComparers); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestMergeRoutes(t *testing.T) {
	a, b := nic("net0", "eth0", "m", 1500), nic("net0", "eth0", "m", 1500)
	a.Routes = []spec.Route{{Gateway: netip.MustParseAddr("10.0.0.1")}}
	b.Routes = []spec.Route{{Gateway: netip.MustParseAddr("10.0.0.9")}}
	got, changed, err := Merge([]spec.NIC{a}, []Link{found(b)})
	if err != nil || !changed || got[0].Routes[0] != b.Routes[0] {
		t.Errorf("%+v, %v, %v", got, changed, err)
	}
}

var netComparers = cmp.Options{
	cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
	cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
}

func TestAddressChanges(t *testing.T) {
	list := func(addresses ...string) (out []Address) {
		for _, a := range addresses {
			out = append(out, Address{Prefix: netip.MustParsePrefix(a)})
		}
		return out
	}
	tests := []struct {
		name                   string
		now, want, remove, add []Address
	}{
		{"none", nil, nil, nil, nil},
		{"all", nil, list("10.0.0.1/8", "10.0.0.2/8", "fd00::1/64", "fd00::2/64"),
			nil, list("10.0.0.1/8", "10.0.0.2/8", "fd00::2/64", "fd00::1/64")},
		{"primary lost", list("10.0.0.2/8"), list("10.0.0.1/8", "10.0.0.2/8"),
			list("10.0.0.2/8"), list("10.0.0.1/8", "10.0.0.2/8")},
		{"secondary lost", list("10.0.0.1/8"), list("10.0.0.1/8", "10.0.0.2/8"), nil, list("10.0.0.2/8")},
		{"stranger", list("10.0.0.1/8", "10.0.0.3/8", "fe80::1/64"), list("10.0.0.1/8"),
			list("10.0.0.3/8", "fe80::1/64"), nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			remove, add := addressChanges(tt.now, tt.want)
			if diff := cmp.Diff([][]Address{tt.remove, tt.add}, [][]Address{remove, add}, netComparers); diff != "" {
				t.Error(diff)
			}
		})
	}
}
