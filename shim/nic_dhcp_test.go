package shim

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/insomniacslk/dhcp/dhcpv4"

	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/shim/bundle"
	"godwit.dev/godwit/shim/journal"
)

var byAddr = cmpopts.EquateComparable(netip.Addr{})

func TestResolver(t *testing.T) {
	for text, want := range map[string]journal.Names{
		"":                       {},
		"nameserver 10.0.0.53\n": {DNS: []netip.Addr{netip.MustParseAddr("10.0.0.53")}},
		"# of the host\nnameserver 127.0.0.53\nnameserver fe80::1%eth0\nnameserver ::1\nnameserver fd00::53\nnameserver " +
			"x\nnameserver": {DNS: []netip.Addr{netip.MustParseAddr("fd00::53")}},
		"domain a.example\nsearch b.example. c.example .\noptions ndots:5": {Search: []string{"b.example", "c.example"}},
	} {
		var got journal.Names
		got.DNS, got.Search = resolver(text)
		if diff := cmp.Diff(want, got, byAddr); diff != "" {
			t.Errorf("%q (-want +got):\n%s", text, diff)
		}
	}
}

// What a guest without an agent is told is that of its interface and of the
// container; its leases are seen, by a successor too.
func TestGuestWithoutAnAgentIsServed(t *testing.T) {
	w := newWorld(t).running()
	vm, _ := w.service.current()
	w.must("write", vm.write(func(j *journal.Journal) {
		s := j.Spec.Clone()
		s.VMDisk = &spec.VMDisk{OS: spec.OSLinux, Boot: spec.BootUEFI}
		s.Container.OCI.Hostname = "web"
		j.Spec = s
	}))
	conf := filepath.Join(t.TempDir(), "resolv.conf")
	w.must("write", os.WriteFile(conf, []byte("nameserver 10.0.0.53\nsearch example.org\n"), 0o600))
	vm.owner.bundle.Copies = bundle.Copies{{Source: conf, Destination: "/etc/resolv.conf"}}
	links := w.links[:1:1]
	links[0].NIC.Addresses = []netip.Prefix{netip.MustParsePrefix("10.0.0.2/24")}
	links, names, err := (&starting{vm: vm, task: vm.owner}).prepareDHCP(t.Context(), "netns", links)
	w.must("prepare", err)
	if diff := cmp.Diff(&journal.Names{Hostname: "web", DNS: []netip.Addr{netip.MustParseAddr("10.0.0.53")},
		Search: []string{"example.org"}}, names, byAddr); diff != "" || links[0].Sink != "dhcp0" {
		t.Fatalf("sink %q, names (-want +got):\n%s", links[0].Sink, diff)
	}
	// Where it wakes without that file, it is told the same.
	w.must("write", vm.write(func(j *journal.Journal) {
		s := j.Spec.Clone()
		s.VMDisk.DNS, s.VMDisk.Search = names.DNS, names.Search
		j.Spec = s
	}))
	vm.owner.bundle.Copies, vm.origin.restored = nil, true
	_, woken, err := (&starting{vm: vm, task: vm.owner}).prepareDHCP(t.Context(), "netns", links)
	w.must("prepare", err)
	if diff := cmp.Diff(names, woken, byAddr); diff != "" {
		t.Errorf("names of a woken VM (-want +got):\n%s", diff)
	}
	vm.origin.restored = false
	w.must("write", vm.write(func(j *journal.Journal) { j.Links, j.Names = links, names }))
	vm.nic.attach(w.net)
	w.must("serve", vm.nic.serveDHCP(vm.life, vm.journal.Load()))
	w.leased(vm)

	_, err = w.capture() // an operation holds it when its shim dies
	w.must("capture", err)
	w.leased(w.succeed(vm))
}

// leased plays the guest's part with what the shim serves.
func (w *world) leased(vm *VM) {
	w.t.Helper()
	s := <-w.net.serves
	hw := []byte{2, 0, 0, 0, 0, 1}
	ask, err := dhcpv4.NewDiscovery(hw, dhcpv4.WithMessageType(dhcpv4.MessageTypeRequest),
		dhcpv4.WithOption(dhcpv4.OptRequestedIPAddress([]byte{10, 0, 0, 2})))
	w.must("ask", err)
	ack, lease, err := s.Reply(ask)
	w.must("answer", err)
	if lease == nil || ack.HostName() != "web" || len(ack.DNS()) != 1 || ack.DomainName() != "example.org" {
		w.t.Fatalf("answer %s", ack.Summary())
	}
	s.leased(*lease)
	nics := vm.spec().Clone().NICs
	nics[0].MAC, nics[0].Addresses = lease.MAC, []netip.Prefix{lease.Address}
	w.must("wait for the lease", vm.nic.leases.wait(w.t.Context(), nics))
}
