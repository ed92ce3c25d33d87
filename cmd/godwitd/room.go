package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"godwit.dev/godwit/api/config"
	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/snapshot/store"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	nodev1 "godwit.dev/godwit/api/node/v1"
)

// room says what stands against a VM coming to this node. It implements peer.Room.
type room struct {
	config *config.Config
	tasks  interface {
		HasTask(ctx context.Context, vm *nodev1.VM) (bool, error)
		Network(ctx context.Context, vm *nodev1.VM, nics []spec.NIC) (obstacle string, err error)
	}
	snapshots interface {
		Exists(ctx context.Context, repository, digest string) (bool, error)
	}
	fits func(ctx context.Context, offer *machinev1.OfferResponse) (string, error) // why the VM could not be taken up
}

// noDigest is nobody's: to ask for it shows whether a repository can be read.
const noDigest = "sha256:0000000000000000000000000000000000000000000000000000000000000000"

// Obstacles implements peer.Room: all of them at once (N-05).
func (r *room) Obstacles(ctx context.Context, req *nodev1.PeerCheckRequest) (all []string, err error) {
	has, err := r.tasks.HasTask(ctx, req.GetVm())
	if err != nil {
		return nil, err
	}
	if has {
		all = append(all, "containerd has a task of that name")
	}
	if repository := req.GetRepository(); repository != "" {
		all = append(all, r.reaches(ctx, repository)...)
	}
	offer := req.GetOffer()
	if offer == nil {
		return all, nil
	}
	no, err := r.fits(ctx, offer)
	if err != nil {
		return nil, err
	}
	if no != "" {
		all = append(all, no)
	}
	if sp, err := spec.Decode(offer.GetSpec()); err == nil { // else fits has said so
		no, err := r.tasks.Network(ctx, req.GetVm(), sp.NICs)
		if err != nil {
			return nil, err
		}
		if no != "" {
			all = append(all, no)
		}
	}
	for _, space := range []struct {
		what, dir string
		need      uint64
	}{{"RAM (ram_size)", r.config.RAMDir, offer.GetRamBytes()}, {"disks (state_dir)", r.config.StateDir, offer.GetDiskBytes()}} {
		var fs unix.Statfs_t
		if err := unix.Statfs(space.dir, &fs); err != nil {
			return nil, fmt.Errorf("room in %s: %w", space.dir, err)
		}
		if free := fs.Bavail * uint64(fs.Bsize); free < space.need {
			all = append(all, fmt.Sprintf("it has %s free for %s, the VM needs %s", config.Size(free), space.what, config.Size(space.need)))
		}
	}
	return all, nil
}

// reaches asks whether the snapshot could be read here.
func (r *room) reaches(ctx context.Context, repository string) []string {
	if dir, ok := strings.CutPrefix(repository, store.LayoutPrefix); ok {
		if own := r.config.Registry.Layout; own == "" || !strings.HasPrefix(dir, own) {
			return []string{fmt.Sprintf("the snapshot would lie in %s, this node's registry.layout is %q", repository, own)}
		}
		return nil
	}
	if _, err := r.snapshots.Exists(ctx, repository, noDigest); err != nil && !errdefs.IsNotFound(err) {
		return []string{fmt.Sprintf("it cannot read %s: %v", repository, err)}
	}
	return nil
}
