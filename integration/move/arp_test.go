//go:build integration

package move

import (
	"bytes"
	"errors"
	"net/netip"
	"os"
	"testing"
	"time"

	"godwit.dev/godwit/integration/harness"
)

// sniffARP hears what comes out of nodes, by their names.
func sniffARP(t *testing.T, h *harness.Harness, nodes ...*harness.Node) map[string]*os.File {
	t.Helper()
	all := map[string]*os.File{}
	for _, n := range nodes {
		f, err := h.SniffARP(n)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		all[n.Name] = f
	}
	return all
}

// gratuitous counts the ARP packets of an address about itself, up to a second from now.
func gratuitous(t *testing.T, f *os.File, address string) (n int) {
	t.Helper()
	ip := netip.MustParseAddr(address).As4()
	if err := f.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
		t.Fatal(err)
	}
	for data := make([]byte, 1500); ; {
		size, err := f.Read(data)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return n
		}
		if err != nil {
			t.Fatal(err)
		}
		// RFC 826: the sender's address is at 14, the target's at 24.
		if size >= 28 && bytes.Equal(data[14:18], ip[:]) && bytes.Equal(data[24:28], ip[:]) {
			n++
		}
	}
}
