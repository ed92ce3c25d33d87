package registry

import (
	"context"

	digest "github.com/opencontainers/go-digest"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/shim/program"
	"godwit.dev/godwit/snapshot/worker"
)

// Worker is a process of its own for what reads whole snapshots: it needs more memory
// than a daemon has, and the bytes are foreign.
func (r *Registry) Worker() *worker.Client {
	return &worker.Client{Command: []string{program.Path(), program.Worker}}
}

// Verify implements node.Snapshots.
func (r *Registry) Verify(ctx context.Context, repository, dgst string) (*nodev1.VerifyResponse, error) {
	cfg, err := r.of(ctx, repository, nodev1.Use_USE_CONTENT)
	if err != nil {
		return nil, err
	}
	v, err := r.Worker().Verify(ctx, worker.VerifyJob{Store: cfg, Keys: worker.KeysOf(r.Config),
		Digest: digest.Digest(dgst), Memory: int64(r.Config.Worker.Memory)}, nil)
	if err != nil {
		return nil, err
	}
	resp := &nodev1.VerifyResponse{Packs: uint32(v.Packs), Frames: uint32(v.Frames), Bytes: v.Bytes, More: uint32(v.More)}
	for _, b := range v.Bad {
		resp.Bad = append(resp.Bad, &nodev1.BadPart{Part: b.Part, Reason: b.Reason})
	}
	return resp, nil
}

// Diff implements node.Snapshots.
func (r *Registry) Diff(ctx context.Context, req *nodev1.DiffRequest) (*nodev1.DiffResponse, error) {
	from, err := r.place(ctx, req.GetFromRepository(), req.GetFrom())
	if err != nil {
		return nil, err
	}
	to, err := r.place(ctx, req.GetToRepository(), req.GetTo())
	if err != nil {
		return nil, err
	}
	spaces, err := r.Worker().Diff(ctx, worker.DiffJob{From: from, To: to})
	if err != nil {
		return nil, err
	}
	resp := &nodev1.DiffResponse{}
	for _, s := range spaces {
		resp.Spaces = append(resp.Spaces, &nodev1.SpaceDiff{
			Name: s.Name, Same: s.Same, Changed: s.Changed, Added: s.Added, Removed: s.Removed, FromSize: s.FromSize,
			ToSize: s.ToSize,
		})
	}
	return resp, nil
}

func (r *Registry) place(ctx context.Context, repository, dgst string) (worker.Place, error) {
	cfg, err := r.of(ctx, repository, nodev1.Use_USE_CONTENT)
	return worker.Place{Store: cfg, Keys: worker.KeysOf(r.Config), Digest: digest.Digest(dgst)}, err
}

// Copy implements node.Snapshots. Where it goes is no VM's: this node's own login counts there.
func (r *Registry) Copy(ctx context.Context, req *nodev1.CopyRequest) (*nodev1.CopyResponse, error) {
	from, err := r.place(ctx, req.GetRepository(), req.GetDigest())
	if err != nil {
		return nil, err
	}
	done, err := r.Worker().Copy(ctx, worker.CopyJob{
		From: from, To: r.StoreConfig(req.GetTo()), Tag: req.GetTag(),
		Memory: int64(r.Config.Worker.Memory),
	}, nil)
	if err != nil {
		return nil, err
	}
	return &nodev1.CopyResponse{Bytes: done.Sent, Total: done.Total, Tag: done.Tag}, nil
}
