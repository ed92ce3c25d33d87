//go:build integration

package agentd

import (
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"

	agentv1 "godwit.dev/godwit/api/agent/lean"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// guestOf gives the test a network namespace of its own, with two NICs as a guest has them.
func guestOf(t *testing.T) *Service {
	t.Helper()
	runtime.LockOSThread() // the thread ends with the test, its namespace too
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	ip(t, "link set lo up")
	ip(t, "link add eth0 address 02:00:00:00:00:01 type veth peer name peer0")
	ip(t, "link add eth1 address 02:00:00:00:00:02 type veth peer name peer1")
	for _, peer := range []string{"peer0", "peer1"} {
		ip(t, "link set "+peer+" up")
	}
	return &Service{opts: Options{Network: func() error { return nil }}, network: newNICSetup()}
}

func ip(t *testing.T, args string) string {
	t.Helper()
	out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput()
	if err != nil {
		t.Fatalf("ip %s: %v: %s", args, err, out)
	}
	return string(out)
}

func twoNICs() []*agentv1.NIC {
	return []*agentv1.NIC{
		{Mac: "02:00:00:00:00:01", Name: "eth0", Mtu: 1500, Addresses: []string{"10.1.0.2/24", "fd01::2/64"}},
		{Mac: "02:00:00:00:00:02", Name: "eth1", Mtu: 1500, Addresses: []string{"10.2.0.2/24", "fd02::2/64"}},
	}
}

// routes are those that begin with one of the words, without what differs between kernels.
func routes(t *testing.T, words ...string) []string {
	t.Helper()
	var out []string
	for line := range strings.Lines(ip(t, "-4 route") + ip(t, "-6 route")) {
		line = strings.TrimSpace(line)
		if slices.ContainsFunc(words, func(w string) bool { return strings.HasPrefix(line, w) }) {
			out = append(out, line)
		}
	}
	return out
}

// Each NIC keeps its default route. Each metric, MTU, advertised segment size and gateway that
// no address covers arrive. A second call, after a wake at other gateways, leaves none of the
// old ones.
func TestRoutesOfTwoNICs(t *testing.T) {
	s, nics := guestOf(t), twoNICs()
	nics[0].Routes = []*agentv1.Route{
		{Family: "4", Gateway: "10.1.0.1"},
		{Family: "4", Gateway: "10.1.0.3", Metric: 200},
		{Family: "6", Gateway: "fd01::1"},
		{Family: "4", Destination: "172.16.0.0/12", Gateway: "192.0.2.1", OnLink: true, Mtu: 1300, Advmss: 1200},
		{Family: "4", Destination: "172.32.0.0/16", Gateway: "fd01::7"},
	}
	nics[1].Routes = []*agentv1.Route{{Family: "4", Gateway: "10.2.0.1", Metric: 100}, {Family: "4", Gateway: "10.2.0.9"},
		{Family: "6", Gateway: "fd02::1"}}
	for range 2 {
		if err := s.configure(t.Context(), nics); err != nil {
			t.Fatal(err)
		}
		text := strings.Join(routes(t, "default", "172.", "nexthop"), "\n")
		for _, want := range []string{
			"default via 10.1.0.1 dev eth0", "default via 10.1.0.3 dev eth0 proto static metric 200",
			"default via 10.2.0.1 dev eth1 proto static metric 100", "default via 10.2.0.9 dev eth1",
			"172.16.0.0/12 via 192.0.2.1 dev eth0 proto static onlink mtu 1300 advmss 1200",
			"172.32.0.0/16 via inet6 fd01::7 dev eth0", "fd01::1 dev eth0", "fd02::1 dev eth1",
		} {
			if !strings.Contains(text, want) {
				t.Errorf("no %q in\n%s", want, text)
			}
		}
		if n := strings.Count(text, "via "); n != 8 {
			t.Errorf("%d routes:\n%s", n, text)
		}
	}
	nics[0].Routes = []*agentv1.Route{{Family: "4", Gateway: "10.1.0.77"}}
	nics[1].Routes = nil
	if err := s.configure(t.Context(), nics); err != nil {
		t.Fatal(err)
	}
	if got := routes(t, "default", "172.", "nexthop"); len(got) != 1 || !strings.Contains(got[0], "10.1.0.77 dev eth0") {
		t.Errorf("after a wake elsewhere: %q", got)
	}
}

// A route by a gateway takes the place of the one that came with an address, as on the host.
func TestRouteInPlaceOfTheKernels(t *testing.T) {
	s, nics := guestOf(t), twoNICs()
	nics[0].Routes = []*agentv1.Route{
		{Family: "4", Destination: "10.1.0.1/32", Scope: unix.RT_SCOPE_LINK, Source: "10.1.0.2"},
		{Family: "4", Destination: "10.1.0.0/24", Gateway: "10.1.0.1", Source: "10.1.0.2"},
		{Family: "4", Gateway: "10.1.0.1"},
	}
	for range 2 {
		if err := s.configure(t.Context(), nics); err != nil {
			t.Fatal(err)
		}
		got := routes(t, "10.1.0.0/24")
		if len(got) != 1 || !strings.Contains(got[0], "via 10.1.0.1 dev eth0") {
			t.Errorf("%q", got)
		}
	}
}

// A direct route with another source, or with sizes of its own, takes the place of the one that
// came with an address. It is so on the host too. A later call without it brings the kernel's
// back.
func TestDirectRouteInPlaceOfTheKernels(t *testing.T) {
	for name, c := range map[string]struct {
		route *agentv1.Route
		want  string
	}{
		"another source": {&agentv1.Route{Family: "4", Destination: "10.1.0.0/24", Scope: unix.RT_SCOPE_LINK,
			Source: "10.1.0.3"}, "src 10.1.0.3"},
		"an MTU": {&agentv1.Route{Family: "4", Destination: "10.1.0.0/24", Scope: unix.RT_SCOPE_LINK,
			Source: "10.1.0.2", Mtu: 1300}, "src 10.1.0.2 mtu 1300"},
		"another metric": {&agentv1.Route{Family: "4", Destination: "10.1.0.0/24", Scope: unix.RT_SCOPE_LINK,
			Source: "10.1.0.3", Metric: 7}, "src 10.1.0.2"},
		"IPv6": {&agentv1.Route{Family: "6", Destination: "fd01::/64", Metric: 256, Mtu: 1300}, "mtu 1300"},
	} {
		t.Run(name, func(t *testing.T) {
			s, nics := guestOf(t), twoNICs()
			nics[0].Addresses = append(nics[0].Addresses, "10.1.0.3/24")
			nics[0].Routes = []*agentv1.Route{c.route}
			for range 2 {
				if err := s.configure(t.Context(), nics); err != nil {
					t.Fatal(err)
				}
				got := routes(t, c.route.Destination)
				if c.route.Metric == 7 {
					got = slices.DeleteFunc(got, func(line string) bool { return strings.Contains(line, "metric 7") })
				}
				if len(got) != 1 || !strings.Contains(got[0], c.want) {
					t.Errorf("%q, want one with %q", got, c.want)
				}
			}
			nics[0].Routes = nil
			if err := s.configure(t.Context(), nics); err != nil {
				t.Fatal(err)
			}
			if got := routes(t, c.route.Destination); len(got) != 1 || !strings.Contains(got[0], "proto kernel") ||
				strings.Contains(got[0], "mtu") {
				t.Errorf("without it: %q", got)
			}
		})
	}
}

// NICs whose names cross get them, and a name that another link has is an error that names it.
func TestNamesThatCross(t *testing.T) {
	s, nics := guestOf(t), twoNICs()
	nics[0].Name, nics[1].Name = "eth1", "eth0"
	if err := s.configure(t.Context(), nics); err != nil {
		t.Fatal(err)
	}
	for name, mac := range map[string]string{"eth1": nics[0].Mac, "eth0": nics[1].Mac} {
		if out := ip(t, "-o link show dev "+name); !strings.Contains(out, mac) || !strings.Contains(out, ",UP") {
			t.Errorf("%s: %s", name, out)
		}
	}
	nics[0].Name = "peer0"
	if err := s.configure(t.Context(), nics); err == nil || !strings.Contains(err.Error(), "peer0") {
		t.Errorf("a name that is taken: %v", err)
	}
}

// A NIC whose name something else has keeps its own, is not taken down, and has its addresses, and so has each other
// NIC. That it is said again changes nothing.
func TestNameThatIsTaken(t *testing.T) {
	for name, c := range map[string]struct {
		prepare      []string
		first, other string // the names that the NICs are to have
		want         [2]string
	}{
		"by another link":    {nil, "peer0", "eth1", [2]string{"eth0", "eth1"}},
		"by another's alias": {[]string{"link property add dev peer0 altname web"}, "web", "eth1", [2]string{"eth0", "eth1"}},
		"of one that stays":  {nil, "eth1", "peer0", [2]string{"eth0", "eth1"}},
		"of both":            {nil, "web", "web", [2]string{"web", "eth1"}},
		"no name":            {nil, "a/b", "eth1", [2]string{"eth0", "eth1"}},
		"by a bridge": {[]string{"link set eth0 name uplink", "link add eth0 type bridge", "link set eth0 up",
			"link set uplink up"}, "eth0", "eth1", [2]string{"uplink", "eth1"}},
	} {
		t.Run(name, func(t *testing.T) {
			s, nics := guestOf(t), twoNICs()
			for _, args := range c.prepare {
				ip(t, args)
			}
			nics[0].Name, nics[1].Name = c.first, c.other
			for range 2 {
				if err := s.configure(t.Context(), nics); err == nil || !strings.Contains(err.Error(), c.first) {
					t.Errorf("the name is taken, and it says: %v", err)
				}
				for i, name := range c.want {
					out := ip(t, "-o link show dev "+name) + ip(t, "-o addr show dev "+name)
					if !strings.Contains(out, nics[i].Mac) || !strings.Contains(out, ",UP") ||
						!strings.Contains(out, nics[i].Addresses[0]) || !strings.Contains(out, nics[i].Addresses[1]) {
						t.Errorf("%s is not set:\n%s", name, out)
					}
				}
			}
		})
	}
}

// Where one NIC is gone, as into a namespace of the workload, the others lose the addresses of the node before.
func TestNICThatIsGone(t *testing.T) {
	for gone := range 2 {
		s, nics := guestOf(t), twoNICs()
		if err := s.configure(t.Context(), nics); err != nil {
			t.Fatal(err)
		}
		name := []string{"eth0", "eth1"}[1-gone]
		nics[gone].Mac, nics[1-gone].Addresses = "02:00:00:00:00:09", []string{"10.7.0.7/24"}
		if err := s.configure(t.Context(), nics); !errdefs.IsNotFound(err) || !strings.Contains(err.Error(), nics[gone].Mac) {
			t.Errorf("a NIC that is not there: %v", err)
		}
		out := ip(t, "-4 -o addr show dev "+name)
		if !strings.Contains(out, "10.7.0.7/24") || strings.Count(out, "inet ") != 1 {
			t.Errorf("%s keeps\n%s", name, out)
		}
	}
}

// A NIC that cannot have its MTU has its addresses.
func TestMTUThatIsRefused(t *testing.T) {
	s, nics := guestOf(t), twoNICs()
	nics[0].Mtu = 1 << 20
	if err := s.configure(t.Context(), nics); err == nil || !strings.Contains(err.Error(), "mtu") {
		t.Errorf("an MTU that no NIC has: %v", err)
	}
	if out := ip(t, "-4 -o addr show dev eth0"); !strings.Contains(out, nics[0].Addresses[0]) {
		t.Errorf("eth0 has\n%s", out)
	}
}
