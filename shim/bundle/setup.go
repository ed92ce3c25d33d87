package bundle

import (
	"encoding/json"
	"fmt"

	"github.com/containerd/errdefs"

	agentv1 "godwit.dev/godwit/api/agent/v1"
	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/guest/client/seccomp"
)

// Setup derives the agent's first request from a Spec whose disks are filled in. The
// bind mounts follow it: Copies.Requests.
func Setup(s *spec.Spec) (*agentv1.SetupRequest, error) { return setupOf(s, s.Container) }

// MemberSetup is Setup for a container of a pod. Its volumes are not in it.
func MemberSetup(s *spec.Spec, m *spec.Member) (*agentv1.SetupRequest, error) {
	return setupOf(s, &m.Container)
}

func setupOf(s *spec.Spec, c *spec.Container) (*agentv1.SetupRequest, error) {
	if c == nil || c.OCI == nil || c.OCI.Linux == nil {
		return nil, fmt.Errorf("set up VM %s: its Spec has no container: %w", s.ID, errdefs.ErrInvalidArgument)
	}
	l := c.OCI.Linux
	r := &agentv1.SetupRequest{
		Hostname:          c.OCI.Hostname,
		ReadOnlyRoot:      c.OCI.Root != nil && c.OCI.Root.Readonly,
		MaskedPaths:       l.MaskedPaths,
		ReadOnlyPaths:     l.ReadonlyPaths,
		Sysctl:            withDomain(l.Sysctl, c.OCI.Domainname),
		RootfsPropagation: l.RootfsPropagation,
		User:              guestUsers(s.Of(c)),
		MapLayers:         c.MapLayers,
	}
	var err error
	if r.Personality, err = personality(l.Personality); err != nil {
		return nil, err
	}
	if l.Seccomp != nil {
		f, err := seccomp.Compile(l.Seccomp)
		if err != nil {
			return nil, err
		}
		r.Seccomp = &agentv1.Seccomp{Program: f.Program, Flags: f.Flags}
	}
	for _, id := range c.Layers {
		d, err := disk(s, id)
		if err != nil {
			return nil, err
		}
		r.Layers = append(r.Layers, d)
	}
	if c.Writable != "" {
		d, err := disk(s, c.Writable)
		if err != nil {
			return nil, err
		}
		r.Writable = d
	}
	for _, m := range c.OCI.Mounts {
		r.Mounts = append(r.Mounts, &agentv1.Mount{Type: m.Type, Source: m.Source, Target: m.Destination, Options: m.Options})
	}
	if l.Resources != nil {
		data, err := json.Marshal(l.Resources)
		if err != nil {
			return nil, fmt.Errorf("set up VM %s: %w", s.ID, err)
		}
		r.Resources = data
	}
	return r, nil
}

func disk(s *spec.Spec, id string) (*agentv1.Disk, error) {
	d := s.Disk(id)
	if d == nil {
		return nil, fmt.Errorf("set up VM %s: its Spec has no disk %q: %w", s.ID, id, errdefs.ErrInvalidArgument)
	}
	return &agentv1.Disk{Serial: d.Serial, Type: d.Type, ReadOnly: d.ReadOnly}, nil
}
