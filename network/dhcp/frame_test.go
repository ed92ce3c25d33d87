package dhcp

import (
	"encoding/binary"
	"net"
	"slices"
	"testing"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv6"
)

// request is a frame of a guest that has no address yet.
func request(t testing.TB, m *dhcpv4.DHCPv4) []byte {
	t.Helper()
	body := m.ToBytes()
	f := append(slices.Repeat([]byte{0xff}, 6), mac...)
	f = append(f, 8, 0)
	ip := make([]byte, 20)
	ip[0], ip[8], ip[9] = 0x45, 64, protoUDP
	binary.BigEndian.PutUint16(ip[2:], uint16(28+len(body)))
	copy(ip[16:], []byte{255, 255, 255, 255})
	f = append(f, ip...)
	f = append(f, 0, ClientPort, 0, ServerPort)
	f = binary.BigEndian.AppendUint16(f, uint16(8+len(body)))
	return append(append(f, 0, 0), body...)
}

func TestFrames(t *testing.T) {
	s := server(t)
	for _, broadcast := range []bool{false, true} {
		replies, _, err := s.Frame(request(t, discover(t, dhcpv4.WithBroadcast(broadcast))))
		if err != nil || len(replies) != 1 {
			t.Fatal(err)
		}
		reply := replies[0]
		to := net.IP(reply[30:34])
		if want := map[bool]net.IP{false: net.IPv4(10, 88, 0, 5), true: net.IPv4bcast}[broadcast]; !to.Equal(want) ||
			!slices.Equal(reply[:6], mac) {
			t.Errorf("broadcast %v: sent to %s at %x", broadcast, to, reply[:6])
		}
		if from := net.IP(reply[26:30]); !from.Equal(net.IPv4(10, 88, 0, 1)) || checksum(reply[14:34]) != 0 ||
			int(binary.BigEndian.Uint16(reply[16:])) != len(reply)-14 ||
			int(binary.BigEndian.Uint16(reply[38:])) != len(reply)-34 {
			t.Errorf("header % x from %s", reply[:42], from)
		}
		if m, err := dhcpv4.FromBytes(reply[42:]); err != nil || m.MessageType() != dhcpv4.MessageTypeOffer {
			t.Errorf("body: %v, %v", m, err)
		}
	}
}

// Frames that are no whole DHCP message are not answered, and harm nothing.
func TestOtherFrames(t *testing.T) {
	s := server(t)
	good := request(t, discover(t))
	for name, change := range map[string]func(f []byte) []byte{
		"empty":          func([]byte) []byte { return nil },
		"short":          func(f []byte) []byte { return f[:41] },
		"not IPv4":       func(f []byte) []byte { f[12] = 0x86; return f },
		"with options":   func(f []byte) []byte { f[14] = 0x46; return f },
		"TCP":            func(f []byte) []byte { f[23] = 6; return f },
		"fragment":       func(f []byte) []byte { f[20] = 0x20; return f },
		"other port":     func(f []byte) []byte { f[37] = 68; return f },
		"longer than it": func(f []byte) []byte { f[38] = 0xff; return f },
		"no header":      func(f []byte) []byte { f[38], f[39] = 0, 7; return f },
		"cut body":       func(f []byte) []byte { f[38], f[39] = 0, 40; return f },
	} {
		if reply, lease, err := s.Frame(change(slices.Clone(good))); reply != nil || lease != nil || err != nil {
			t.Errorf("%s: %d bytes, %v, %v", name, len(reply), lease, err)
		}
	}
}

func FuzzFrame(f *testing.F) {
	m, err := dhcpv4.NewDiscovery(mac)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(request(f, m))
	f.Add(ask6(serverLink))
	f.Add(from(protoUDP, 64, allNodes, solicit(f, dhcpv6.MessageTypeRequest).ToBytes()))
	s, err := New(config())
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, frame []byte) {
		replies, leases, err := s.Frame(frame)
		if err != nil || leases != nil && replies == nil {
			t.Fatalf("%d replies, %v, %v", len(replies), leases, err)
		}
		for _, reply := range replies {
			if len(reply) > 1514 {
				t.Fatalf("%d bytes", len(reply))
			}
		}
	})
}
