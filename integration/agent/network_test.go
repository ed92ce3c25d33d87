//go:build integration

package agent

import (
	"net"
	"os"
	"strings"
	"testing"

	agentv1 "godwit.dev/godwit/api/agent/v1"
	"godwit.dev/godwit/vmm"
	"godwit.dev/godwit/vmm/qemu"

	"github.com/containerd/errdefs"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const testMAC = "02:00:00:67:77:01"

// tap gives the VM a NIC whose other end has 10.97.13.1.
func (m *machine) tap() {
	m.t.Helper()
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		m.t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "tap")
	m.t.Cleanup(func() { f.Close() })
	req, err := unix.NewIfreq("gwa%d")
	if err != nil {
		m.t.Fatal(err)
	}
	req.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, req); err != nil {
		m.t.Fatal(err)
	}
	link, err := netlink.LinkByName(req.Name())
	if err != nil {
		m.t.Fatal(err)
	}
	addr, err := netlink.ParseAddr("10.97.13.1/24")
	if err != nil {
		m.t.Fatal(err)
	}
	if err := netlink.AddrAdd(link, addr); err != nil {
		m.t.Fatal(err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		m.t.Fatal(err)
	}
	m.nics = append(m.nics, vmm.NIC{ID: "net0", Slot: qemu.FirstNICSlot, MAC: testMAC, MTU: 1400, Tap: f})
}

// The guest gets name, MTU, addresses and routes; a second configuration replaces the
// first, and the restored guest is re-addressed before anything else.
func TestNetwork(t *testing.T) {
	m := newMachine(t)
	m.tap()
	m.boot().setup(nil).init()
	nic := func(addr string) []*agentv1.NIC {
		return []*agentv1.NIC{{Mac: testMAC, Name: "eth0", Mtu: 1400, Addresses: []string{addr, "fd00:97::2/64"},
			Routes: []*agentv1.Route{{Gateway: "10.97.13.1"}, {Destination: "192.0.2.0/24", Scope: 253}}}}
	}
	look := func(id string) string {
		r, err := m.exec(id, process("sh", "-c", "ip -o addr show eth0; ip route; cat /sys/class/net/eth0/mtu; ip -o link "+
			"show lo"), "")
		if err != nil {
			t.Fatal(err)
		}
		return r.Out
	}
	reach := func(id string) {
		t.Helper()
		r, err := m.exec(id, process("ping", "-c", "1", "-W", "20", "10.97.13.1"), "")
		if err != nil || r.Status != 0 {
			t.Fatalf("%+v %v", r, err)
		}
	}
	for range 2 {
		if _, err := m.agent.ConfigureNetwork(t.Context(),
			&agentv1.ConfigureNetworkRequest{Nics: nic("10.97.13.2/24")}); err != nil {
			t.Fatal(err)
		}
	}
	got := look("first")
	for _, want := range []string{"10.97.13.2/24", "fd00:97::2/64", "default via 10.97.13.1", "192.0.2.0/24", "1400\n",
		"LOOPBACK,UP"} {
		if !strings.Contains(got, want) {
			t.Fatalf("%q is not in %s", want, got)
		}
	}
	reach("ping")
	_, err := m.agent.Restored(t.Context(), &agentv1.RestoredRequest{Entropy: make([]byte, 32), SetNics: true,
		Nics: nic("10.97.13.3/24")})
	if err != nil {
		t.Fatal(err)
	}
	if got := look("second"); !strings.Contains(got, "10.97.13.3/24") || strings.Contains(got, "10.97.13.2/24") {
		t.Fatal(got)
	}
	reach("ping again")
	bad := []*agentv1.NIC{{Mac: net.HardwareAddr{2, 9, 9, 9, 9, 9}.String()}}
	if _, err := m.agent.ConfigureNetwork(t.Context(), &agentv1.ConfigureNetworkRequest{Nics: bad}); !errdefs.IsNotFound(
		err) {
		t.Fatal(err)
	}
}
