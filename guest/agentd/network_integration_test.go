//go:build integration

package agentd

import (
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"

	agentv1 "godwit.dev/godwit/api/agent/lean"

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
