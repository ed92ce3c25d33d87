package node

import (
	"context"

	nodev1 "godwit.dev/godwit/api/node/v1"
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
			info.Name, info.Image, info.CreatedUnixNano = c.GetName(), c.GetImage(), c.GetCreatedUnixNano()
		}
	}
	return err
}
