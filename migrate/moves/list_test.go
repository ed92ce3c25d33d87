package moves

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/containerd/ttrpc"
	"google.golang.org/protobuf/proto"

	"godwit.dev/godwit/api/moves"
	"godwit.dev/godwit/migrate/cluster"
	"godwit.dev/godwit/migrate/controller"
	"godwit.dev/godwit/migrate/store/storetest"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// wordy is an engine whose moves have long reasons.
type wordy struct{ Engine }

func (wordy) Status(_ context.Context, id string) (*nodev1.StatusResponse, error) {
	opened := int64(0)
	_, err := fmt.Sscanf(id, "op%d", &opened)
	return &nodev1.StatusResponse{Settled: true, Operation: &nodev1.Operation{
		Id: id, Kind: nodev1.Kind_KIND_MIGRATE, OpenedUnixNano: opened, Reason: strings.Repeat("x", 4096),
		Vm: &nodev1.VM{Namespace: "ns", Id: id},
	}}, err
}

// More moves than one message takes are all listed, each once, the oldest first, through a proxy too. A
// client of a build before, which asks for no parts, gets the newest ones and hears how many are left away.
func TestManyMovesAreListed(t *testing.T) {
	const all = 1500
	memory := storetest.NewMemory()
	board, err := cluster.Open(t.Context(), memory, false)
	if err != nil {
		t.Fatal(err)
	}
	for i := range all {
		if err := board.Append(t.Context(), &nodev1.MoveEvent{Type: moves.Aborted,
			Operation: fmt.Sprintf("op%d", i+1)}); err != nil {
			t.Fatal(err)
		}
	}
	first := client(t, &Service{Cluster: board, Records: controller.New(memory), Engine: wordy{}})
	for name, c := range map[string]*moves.Client{"controller": first, "proxy": client(t, first)} {
		resp, err := c.List(t.Context(), &nodev1.MovesRequest{Closed: true})
		if err != nil || len(resp.GetMoves()) != all {
			t.Fatalf("%s: %d moves: %v", name, len(resp.GetMoves()), err)
		}
		for i, m := range resp.GetMoves() {
			if m.GetOperation().GetId() != fmt.Sprintf("op%d", i+1) {
				t.Fatalf("%s: move %d is %s", name, i, m.GetOperation().GetId())
			}
		}
		one, err := c.List(t.Context(), &nodev1.MovesRequest{Closed: true, Vm: &nodev1.VM{Namespace: "ns", Id: "op7"}})
		if err != nil || len(one.GetMoves()) != 1 {
			t.Errorf("%s: those of one VM: %v: %v", name, one, err)
		}
	}
	old := new(nodev1.MovesResponse)
	err = conn(t, &Service{Cluster: board, Records: controller.New(memory), Engine: wordy{}}).Call(t.Context(),
		"godwit.node.v1.Moves", "List", &nodev1.MovesRequest{Closed: true}, old)
	n := len(old.GetMoves())
	if err != nil || n < all/2 || n+int(old.GetOmitted()) != all ||
		old.GetMoves()[n-1].GetOperation().GetId() != fmt.Sprintf("op%d", all) || proto.Size(old) > controller.MaxAnswer {
		t.Errorf("a client of a build before: %d moves of %d bytes, %d left away: %v", n, proto.Size(old), old.GetOmitted(),
			err)
	}
	if !slices.IsSortedFunc(old.GetMoves(), func(a, b *nodev1.StatusResponse) int {
		return int(a.GetOperation().GetOpenedUnixNano() - b.GetOperation().GetOpenedUnixNano())
	}) {
		t.Error("they are in no order")
	}
}

// serving answers the socket at which a service of moves is served.
func serving(t *testing.T, s nodev1.MovesService) string {
	t.Helper()
	srv, err := controller.NewServer()
	if err != nil {
		t.Fatal(err)
	}
	nodev1.RegisterMovesService(srv, s)
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() { _ = controller.ServeLocal(t.Context(), srv, l) })
	t.Cleanup(func() { _ = srv.Close(); _ = l.Close(); wg.Wait() })
	return socket
}

func client(t *testing.T, s nodev1.MovesService) *moves.Client {
	t.Helper()
	c := moves.Local(serving(t, s))
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// conn is a connection without the client's manners.
func conn(t *testing.T, s nodev1.MovesService) *ttrpc.Client {
	t.Helper()
	raw, err := net.Dial("unix", serving(t, s))
	if err != nil {
		t.Fatal(err)
	}
	c := ttrpc.NewClient(raw)
	t.Cleanup(func() { _ = c.Close() })
	return c
}
