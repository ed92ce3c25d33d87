// Package placement says what stands against a VM coming to this node: VMM, CPU, network, RAM, disks, and
// whether the node can read its snapshot.
package placement

import (
	"context"
	"fmt"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"godwit.dev/godwit/api/config"
	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/shim/rampool"
	"godwit.dev/godwit/snapshot/store"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Node is this node as a destination. It implements peer.Placement.
type Node struct {
	Config *config.Config
	Tasks  interface {
		HasTask(ctx context.Context, vm *nodev1.VM) (bool, error)
		Busy(ctx context.Context, vm *nodev1.VM) (bool, error)
		Network(ctx context.Context, vm *nodev1.VM, nics []spec.NIC) (obstacle string, err error)
	}
	Snapshots interface {
		Exists(ctx context.Context, repository, digest string) (bool, error)
		Keeps(repository, digest string) bool
		Offer(ctx context.Context, repository, digest string) (*machinev1.OfferResponse, error)
	}
	Fits func(ctx context.Context, offer *machinev1.OfferResponse) (string, error) // why the VM could not be taken up
}

// noDigest is the digest of no snapshot: to ask for it shows whether a repository can be read.
const noDigest = "sha256:0000000000000000000000000000000000000000000000000000000000000000"

// Check implements peer.Placement: all that is in the way, at once.
func (r *Node) Check(ctx context.Context, req *nodev1.PeerCheckRequest) (*nodev1.PeerCheckResponse, error) {
	resp, task := &nodev1.PeerCheckResponse{}, r.Tasks.HasTask
	if req.GetDigest() != "" {
		task = r.Tasks.Busy
	}
	has, err := task(ctx, req.GetVm())
	if err != nil {
		return nil, err
	}
	if has {
		resp.Obstacles = append(resp.Obstacles, "containerd has a task of that name")
	}
	offer := req.GetOffer()
	if req.GetDigest() != "" {
		if offer, err = r.sleeps(ctx, req, resp); err != nil {
			return nil, err
		}
	} else if repository := req.GetRepository(); repository != "" {
		resp.Obstacles = append(resp.Obstacles, r.reaches(ctx, repository, "")...)
	}
	if offer == nil {
		return resp, nil
	}
	no, err := r.Fits(ctx, offer)
	if err != nil {
		return nil, err
	}
	if no != "" {
		resp.Obstacles = append(resp.Obstacles, no)
	}
	// Of what cannot be decoded fits has said so. CRI makes the network of a pod.
	if sp, err := spec.Decode(offer.GetSpec()); err == nil && sp.Pod == nil {
		no, err := r.Tasks.Network(ctx, req.GetVm(), sp.NICs)
		if err != nil {
			return nil, err
		}
		if no != "" {
			resp.Obstacles = append(resp.Obstacles, no)
		}
	}
	return resp, r.space(offer, resp)
}

// sleeps reads what a snapshot would offer, and whether this node keeps all of it. What of the
// snapshot this node can never read is in the way, and so is a layout that does not have it: it
// may be another node's of the same path. Any other error is one.
func (r *Node) sleeps(ctx context.Context, req *nodev1.PeerCheckRequest,
	resp *nodev1.PeerCheckResponse) (*machinev1.OfferResponse, error) {
	repository := req.GetRepository()
	resp.Copy = r.Snapshots.Keeps(repository, req.GetDigest())
	layout := strings.HasPrefix(repository, store.LayoutPrefix)
	if !resp.GetCopy() && layout {
		if no := r.reaches(ctx, repository, req.GetDigest()); len(no) > 0 {
			resp.Obstacles = append(resp.Obstacles, no...)
			return nil, nil
		}
	}
	offer, err := r.Snapshots.Offer(ctx, repository, req.GetDigest())
	if errdefs.IsFailedPrecondition(err) || errdefs.IsNotImplemented(err) || layout && errdefs.IsNotFound(err) {
		resp.Obstacles = append(resp.Obstacles, err.Error())
		return nil, nil
	}
	return offer, err
}

// here reports whether a snapshot is seen to be in this node's own store.
func (r *Node) here(ctx context.Context, repository, digest string) bool {
	there, err := r.Snapshots.Exists(ctx, repository, digest)
	return err == nil && there
}

// space counts RAM as admission does, by what the VMs here were promised.
func (r *Node) space(offer *machinev1.OfferResponse, resp *nodev1.PeerCheckResponse) error {
	total, used, _, err := rampool.Use(r.Config.RAMDir)
	if err != nil {
		return fmt.Errorf("room in ram_dir: %w", err)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(r.Config.StateDir, &fs); err != nil {
		return fmt.Errorf("room in %s: %w", r.Config.StateDir, err)
	}
	resp.FreeBytes = total - min(used, total)
	huge, err := rampool.Huge(r.Config.RAMDir)
	if err != nil {
		return err
	}
	if huge {
		resp.Obstacles = append(resp.Obstacles,
			"its RAM consists of huge pages (ram_huge_pages), on which no VM wakes or arrives")
	}
	for _, space := range []struct {
		what       string
		free, need uint64
		remedy     string
	}{{"RAM (ram_size)", resp.GetFreeBytes(), offer.GetRamBytes(), ""},
		{"disks (state_dir)", fs.Bavail * uint64(fs.Bsize), offer.GetDiskBytes(), ": make room in " + r.Config.StateDir}} {
		if space.free < space.need {
			resp.Obstacles = append(resp.Obstacles, fmt.Sprintf("it has %s free for %s, the VM needs %s%s",
				config.Size(space.free), space.what, config.Size(space.need), space.remedy))
		}
	}
	return nil
}

// reaches asks whether the snapshot could be read here; digest is that of one that is made. The own store
// of a node has the path of every other node's, and no snapshot that comes from there.
func (r *Node) reaches(ctx context.Context, repository, digest string) []string {
	if dir, ok := strings.CutPrefix(repository, store.LayoutPrefix); ok {
		reg := r.Config.Registry
		switch {
		case reg.Own && (digest == "" || !r.here(ctx, repository, digest)):
			return []string{fmt.Sprintf("snapshots in %s are of the node alone that makes them: set registry.repository to "+
				"the same registry on all nodes", repository)}
		case !reg.Own && (reg.Layout == "" || !strings.HasPrefix(dir, reg.Layout)):
			return []string{fmt.Sprintf("the snapshot would lie in %s, which this node does not read (registry.layout is %q): "+
				"set registry.repository to the same registry on all nodes", repository, reg.Layout)}
		}
		return nil
	}
	if _, err := r.Snapshots.Exists(ctx, repository, noDigest); err != nil && !errdefs.IsNotFound(err) {
		return []string{fmt.Sprintf("it cannot read %s: %v", repository, err)}
	}
	return nil
}
