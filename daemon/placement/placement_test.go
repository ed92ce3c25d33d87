package placement

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"godwit.dev/godwit/api/config"
	"godwit.dev/godwit/api/spec"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	nodev1 "godwit.dev/godwit/api/node/v1"
)

// site is what a node asks of itself before a VM comes; failing names the call that fails.
type site struct {
	failing      string
	task, ended  bool
	network      string
	obstacle     string // of VMM, machine and CPU
	copied       bool
	unreadable   error
	needs, disks uint64
}

var errSite = errdefs.ErrUnavailable

func (s *site) fails(call string) error {
	if s.failing == call {
		return errSite
	}
	return nil
}

func (s *site) HasTask(context.Context, *nodev1.VM) (bool, error) { return s.task, s.fails("task") }
func (s *site) Busy(context.Context, *nodev1.VM) (bool, error) {
	return s.task && !s.ended, s.fails("task")
}

func (s *site) Network(context.Context, *nodev1.VM, []spec.NIC) (string, error) {
	return s.network, s.fails("network")
}

func (s *site) Exists(context.Context, string, string) (bool, error) { return false, s.unreadable }
func (s *site) Keeps(string, string) bool                            { return s.copied }

func (s *site) Offer(context.Context, string, string) (*machinev1.OfferResponse, error) {
	if s.unreadable != nil {
		return nil, s.unreadable
	}
	data, err := json.Marshal(&spec.Spec{Version: spec.Version})
	return &machinev1.OfferResponse{Spec: data, Facts: []byte(`{}`), RamBytes: s.needs, DiskBytes: s.disks}, err
}

func (s *site) fits(context.Context, *machinev1.OfferResponse) (string, error) {
	return s.obstacle, s.fails("fits")
}

// A node lists at once all that keeps a sleeping VM from waking there. It says whether it keeps
// a copy, and counts the promised room as used. What the node cannot find out is an error, not a
// yes.
func TestPlacementOfASleeper(t *testing.T) {
	dir := t.TempDir()
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		t.Fatal(err)
	}
	total := fs.Blocks * uint64(fs.Bsize)
	promised, err := os.Create(filepath.Join(dir, "another"))
	if err != nil {
		t.Fatal(err)
	}
	defer promised.Close()
	if err := promised.Truncate(1 << 30); err != nil { // not a byte of it is used
		t.Fatal(err)
	}
	check := &nodev1.PeerCheckRequest{Vm: &nodev1.VM{Namespace: "default", Id: "web"}, Repository: "r/u",
		Digest: "sha256:1"}
	for name, tt := range map[string]struct {
		site site
		want []string
		is   func(error) bool
	}{
		"nothing":           {site{needs: 1 << 20}, nil, nil},
		"a copy":            {site{copied: true}, nil, nil},
		"a task that ended": {site{task: true, ended: true}, nil, nil},
		"all at once": {site{task: true, obstacle: "its CPU", network: "its MTU", needs: total, disks: 1 << 62},
			[]string{"a task of that name", "its CPU", "its MTU", "free for RAM (ram_size)", "free for disks (state_dir)"}, nil},
		"no keys":            {site{unreadable: errdefs.ErrFailedPrecondition}, []string{"failed precondition"}, nil},
		"of a newer build":   {site{unreadable: errdefs.ErrNotImplemented}, []string{"not implemented"}, nil},
		"the store is away":  {site{unreadable: errdefs.ErrUnavailable}, nil, errdefs.IsUnavailable},
		"damaged":            {site{unreadable: errdefs.ErrDataLoss}, nil, errdefs.IsDataLoss},
		"no task is told":    {site{failing: "task"}, nil, errdefs.IsUnavailable},
		"no network is told": {site{failing: "network"}, nil, errdefs.IsUnavailable},
		"no fit is told":     {site{failing: "fits"}, nil, errdefs.IsUnavailable},
		"copy, and no keys": {site{copied: true, unreadable: errdefs.ErrFailedPrecondition},
			[]string{"failed precondition"}, nil},
		"it fits by one byte": {site{needs: total - 1<<30}, nil, nil},
		"and by one too few":  {site{needs: total - 1<<30 + 1}, []string{"free for RAM (ram_size)"}, nil},
	} {
		s := &tt.site
		r := &Node{Config: &config.Config{RAMDir: dir, StateDir: dir}, Tasks: s, Snapshots: s, Fits: s.fits}
		resp, err := r.Check(t.Context(), check)
		if tt.is != nil {
			if !tt.is(err) {
				t.Errorf("%s: %v, %v", name, resp, err)
			}
			continue
		}
		all := resp.GetObstacles()
		same := slices.EqualFunc(all, tt.want, strings.Contains)
		if err != nil || !same || resp.GetCopy() != s.copied || s.unreadable == nil && resp.GetFreeBytes() != total-1<<30 {
			t.Errorf("%s: %v, %v; want %q", name, resp, err, tt.want)
		}
	}
	s := &site{}
	r := &Node{Config: &config.Config{RAMDir: filepath.Join(dir, "none"), StateDir: dir}, Tasks: s, Snapshots: s,
		Fits: s.fits}
	if resp, err := r.Check(t.Context(), check); err == nil {
		t.Errorf("no ram_dir: %v", resp)
	}
	r.Config = &config.Config{RAMDir: dir, StateDir: filepath.Join(dir, "none")}
	if resp, err := r.Check(t.Context(), check); err == nil {
		t.Errorf("no state_dir: %v", resp)
	}
	away := &nodev1.PeerCheckRequest{Vm: check.Vm, Repository: "oci-layout:/elsewhere/u", Digest: "sha256:1"}
	r.Config = &config.Config{RAMDir: dir, StateDir: dir}
	if resp, err := r.Check(t.Context(), away); err != nil || len(resp.GetObstacles()) != 1 ||
		!strings.Contains(resp.GetObstacles()[0], "registry.layout") {
		t.Errorf("a layout of another node: %v, %v", resp, err)
	}
	s.unreadable = errdefs.ErrUnavailable // no such directory
	r.Config.Registry = config.Registry{Layout: "/elsewhere", Own: true}
	for _, digest := range []string{"sha256:1", ""} {
		resp, err := r.Check(t.Context(), &nodev1.PeerCheckRequest{Vm: check.Vm, Repository: away.Repository, Digest: digest})
		if err != nil || len(resp.GetObstacles()) != 1 || !strings.Contains(resp.GetObstacles()[0], "registry.repository") {
			t.Errorf("another node's own store, digest %q: %v, %v", digest, resp, err)
		}
	}
	for repository, obstacles := range map[string]int{"oci-layout:" + dir + "/u": 1, "registry.example/u": 0} {
		s := &site{unreadable: errdefs.ErrNotFound}
		r := &Node{Config: &config.Config{RAMDir: dir, StateDir: dir, Registry: config.Registry{Layout: dir}}, Tasks: s,
			Snapshots: s, Fits: s.fits}
		resp, err := r.Check(t.Context(), &nodev1.PeerCheckRequest{Vm: check.Vm, Repository: repository, Digest: "sha256:1"})
		if len(resp.GetObstacles()) != obstacles || errdefs.IsNotFound(err) == (obstacles > 0) {
			t.Errorf("%s has no such snapshot: %v, %v", repository, resp, err)
		}
	}
}
