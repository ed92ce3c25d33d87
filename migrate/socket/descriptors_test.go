package socket

import (
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/containerd/ttrpc"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/internal/fdtest"
)

// A client of a daemon that has no free descriptors hears so, with the remedy, and is served once
// there are some: a client of the records too, which asks twice.
func TestNoDescriptorsIsSaid(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	l, err := Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	server, err := ttrpc.NewServer()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	go func() { _ = server.Serve(t.Context(), l) }()
	ask := func() error {
		conn, err := net.Dial("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		client := ttrpc.NewClient(conn)
		defer client.Close()
		_, err = nodev1.NewNodeClient(client).VMs(t.Context(), &nodev1.VMsRequest{Namespace: strings.Repeat("long", 1<<16)})
		return record.FromWire(err)
	}
	if err := ask(); !errdefs.IsNotImplemented(err) {
		t.Fatalf("with descriptors: %v", err)
	}
	restore := fdtest.Exhaust(t, 1) // the client's
	if err := ask(); !errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), "LimitNOFILE") {
		t.Errorf("without: %v", err)
	}
	records := record.Local(socket)
	if _, err := records.Get(t.Context(), &nodev1.GetRequest{}); !errdefs.IsUnavailable(err) ||
		!strings.Contains(err.Error(), "LimitNOFILE") {
		t.Errorf("of the records: %v", err)
	}
	_ = records.Close()
	restore()
	if err := ask(); !errdefs.IsNotImplemented(err) {
		t.Errorf("with descriptors again: %v", err)
	}
}
