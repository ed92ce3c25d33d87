package node

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/migrate/transition"
)

// describe adds the names and images of the VMs whose containers are on this node, and their age.
func (s *Service) describe(ctx context.Context, byName map[string]*nodev1.VMInfo) error {
	if s.Containers == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, recordsTimeout)
	defer cancel()
	all, err := s.Containers(ctx)
	for _, c := range all {
		if info := byName[key(c.GetVm())]; info != nil {
			info.Image, info.CreatedUnixNano = c.GetImage(), c.GetCreatedUnixNano()
			info.Pod, info.Containers = c.GetPod(), c.GetContainers()
			if info.GetName() == "" || info.GetNode() == s.Config.Node && info.GetOwner().GetNode() != "" {
				info.Name = c.GetName() // of a VM that is elsewhere, the container here has the name of before
			}
		}
	}
	return err
}

// ContainerImage implements nodev1.NodeService.
func (s *Service) ContainerImage(ctx context.Context, req *nodev1.ContainerImageRequest) (
	*nodev1.ContainerImageResponse, error) {
	if err := transition.CheckVM(&nodev1.VM{Namespace: req.GetNamespace(), Id: req.GetContainer()}); err != nil {
		return nil, err
	}
	if s.ImageOf == nil {
		return nil, fmt.Errorf("this node asks no containerd: %w", errdefs.ErrUnavailable)
	}
	digest, err := s.ImageOf(ctx, req.GetNamespace(), req.GetContainer())
	if err != nil {
		return nil, err
	}
	return &nodev1.ContainerImageResponse{Digest: digest}, nil
}
