package cli

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"godwit.dev/godwit/migrate/controller"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// keeper is a godwitd that keeps pins.
type keeper struct {
	nodev1.NodeService
	asked chan *nodev1.PinRequest
	wakes chan *nodev1.WakeRequest
}

func (k keeper) Snapshots(context.Context, *nodev1.SnapshotsRequest) (*nodev1.SnapshotsResponse, error) {
	return &nodev1.SnapshotsResponse{Snapshots: []*nodev1.SnapshotInfo{{Digest: "sha256:" + strings.Repeat("a", 64),
		Name: "before-upgrade"}}}, nil
}

func (k keeper) Pin(_ context.Context, req *nodev1.PinRequest) (*nodev1.Record, error) {
	k.asked <- req
	return &nodev1.Record{Vm: &nodev1.VM{Namespace: "default", Id: "web"}, Snapshots: []*nodev1.SnapshotRef{{
		Digest: req.GetDigest(), Name: "before-upgrade", Pinned: req.GetPinned(), Manual: true}}}, nil
}

// Checkpoint is of a release that knows of no names.
func (k keeper) Checkpoint(_ context.Context, req *nodev1.CheckpointRequest) (*nodev1.StatusResponse, error) {
	return awake(req.GetOperation()), nil
}

func (k keeper) Recorded(_ context.Context, req *nodev1.GetRequest) (*nodev1.Record, error) {
	return &nodev1.Record{Vm: req.GetVm()}, nil
}

func (k keeper) VMs(context.Context, *nodev1.VMsRequest) (*nodev1.VMsResponse, error) {
	return &nodev1.VMsResponse{}, nil
}

func (k keeper) Wake(_ context.Context, req *nodev1.WakeRequest) (*nodev1.StatusResponse, error) {
	k.wakes <- req
	return awake(req.GetOperation()), nil
}

// A name stands where a digest does: for pin, unpin and wake --from. A bad name is refused before a daemon is asked.
func TestNamesOfSnapshots(t *testing.T) {
	k := keeper{asked: make(chan *nodev1.PinRequest, 1), wakes: make(chan *nodev1.WakeRequest, 1)}
	dir, err := os.MkdirTemp("", "g") // the name of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	srv, err := controller.NewServer()
	if err != nil {
		t.Fatal(err)
	}
	nodev1.RegisterNodeService(srv, k)
	socket := filepath.Join(dir, "s")
	serveLocal(t, srv, socket)
	digest := "sha256:" + strings.Repeat("a", 64)
	godwit := func(args ...string) (int, string) {
		var out, errs bytes.Buffer
		code := Run(t.Context(), append([]string{"--socket", socket}, args...), &out, &errs)
		return code, out.String() + errs.String()
	}
	for _, tt := range []struct {
		args   []string
		pinned bool
		name   *string
		says   string
	}{
		{[]string{"snapshot", "pin", "before-upgrade"}, true, nil, "(before-upgrade) of VM default/web: pinned"},
		{[]string{"snapshot", "pin", "--name", "", "aaaa"}, true, new(string), "pinned"},
		{[]string{"snapshot", "unpin", "before-upgrade"}, false, nil, "stays until godwit snapshot rm"},
	} {
		code, out := godwit(tt.args...)
		if code != 0 || !strings.Contains(out, tt.says) {
			t.Fatalf("%v: exit code %d, %s", tt.args, code, out)
		}
		if req := <-k.asked; req.GetDigest() != digest || req.GetPinned() != tt.pinned || req.Pinned == nil ||
			(req.Name == nil) != (tt.name == nil) || req.GetVm() != nil {
			t.Errorf("%v: %v", tt.args, req)
		}
	}
	for _, verb := range []string{"pin", "unpin"} {
		if code, out := godwit("snapshot", verb, "--vm", "default/web", "aaaa"); code != 0 {
			t.Fatalf("%s of a VM: exit code %d, %s", verb, code, out)
		}
		if req := <-k.asked; req.GetVm().GetId() != "web" || req.GetDigest() != digest {
			t.Errorf("%s of a VM: %v", verb, req)
		}
	}
	for _, args := range [][]string{{"snapshot", "pin", "--name", "cafe", "aaaa"},
		{"checkpoint", "--name", "a/b", "web"},
		{"checkpoint", "--name", "x", "--every", "1m", "web"}, {"wake", "--from", "x", "--digest", "aaaa", "web"},
		{"wake", "--from", "", "web"}} {
		if code, out := godwit(args...); code != 2 {
			t.Errorf("%v: exit code %d, %s", args, code, out)
		}
	}
	if len(k.asked) > 0 {
		t.Error("the daemon was asked")
	}
	for _, flags := range [][]string{{"--name", "x"}, {"--pin"}} {
		code, out := godwit(append([]string{"checkpoint", "web", "--operation", "c"}, flags...)...)
		if code != 4 || !strings.Contains(out, "release before") {
			t.Errorf("a godwitd that gives no names: %v: exit code %d, %s", flags, code, out)
		}
	}
	if code, out := godwit("checkpoint", "web"); code != 0 {
		t.Errorf("without a name: exit code %d, %s", code, out)
	}
	if code, out := godwit("wake", "--from", "before-upgrade", "--lost-node", "c", "web"); code != 0 {
		t.Fatalf("wake: exit code %d, %s", code, out)
	}
	if req := <-k.wakes; req.GetDigest() != digest || !req.GetForce() {
		t.Errorf("wake: %v", req)
	}
}
