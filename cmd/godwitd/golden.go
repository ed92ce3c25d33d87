package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/uuid"
	digest "github.com/opencontainers/go-digest"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/daemon/registry"
	"godwit.dev/godwit/migrate/node"
	"godwit.dev/godwit/migrate/tasks"
	"godwit.dev/godwit/snapshot"
	"godwit.dev/godwit/snapshot/store"
)

// golden finds and makes golden snapshots.
type golden struct {
	*registry.Registry
	tasks    *tasks.Client
	machines *node.Machines
	records  nodev1.RecordsService

	patience time.Duration // with one that is read; 0: goldenBound

	making  sync.Mutex
	busy    map[string]bool                 // VMs that a golden snapshot is being made of
	reading map[digest.Digest]chan struct{} // closed when nobody makes its table any more
}

// Bounds of what a hibernate, and who makes one, waits for a golden snapshot that this node
// has not read yet, and of how many tables it keeps.
const (
	goldenBound = time.Minute
	mostTables  = 16
)

func (g *golden) repository() string {
	switch cfg := g.Config.Registry; {
	case cfg.Layout != "":
		return snapshot.GoldenRepository(store.LayoutPrefix + cfg.Layout)
	case cfg.Repository != "":
		return snapshot.GoldenRepository(cfg.Repository)
	default:
		return ""
	}
}

// Golden implements engine.Golden: the snapshot of the VM's image whose table lies ready.
// It is never worth more than bytes: whatever goes wrong is said, and that is all.
func (g *golden) Golden(ctx context.Context, vm *nodev1.VM) string {
	ctx, cancel := context.WithTimeout(ctx, goldenBound)
	defer cancel()
	d, err := g.find(ctx, vm)
	if err == nil && d != "" {
		err = g.ready(ctx, d)
	}
	if err != nil {
		slog.WarnContext(ctx, "golden snapshot is not used", "vm", vm.GetNamespace()+"/"+vm.GetId(), "digest", d, "reason", err)
		return ""
	}
	return d.String()
}

func (g *golden) find(ctx context.Context, vm *nodev1.VM) (digest.Digest, error) {
	_, image, err := g.tasks.Image(ctx, vm)
	if err != nil || image == "" || g.repository() == "" {
		return "", err
	}
	q, err := g.machines.Query(ctx, vm)
	if err != nil {
		return "", err
	}
	st, err := g.Open(g.repository())
	if err != nil {
		return "", err
	}
	tags, err := st.Tags(ctx)
	if errdefs.IsNotFound(err) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	tag := snapshot.Nearest(tags, snapshot.GoldenInfo{
		Image: digest.Digest(image), VMM: q.GetVmm(), Kernel: q.GetKernel(), Memory: q.GetMemory(), VCPUs: int(q.GetVcpus()),
	})
	if tag == "" {
		return "", nil
	}
	info, err := st.Stat(ctx, store.Manifest(tag))
	if errdefs.IsNotFound(err) {
		return "", nil // removed since
	}
	return info.Digest, err
}

// List implements node.Golden.
func (g *golden) List(ctx context.Context) ([]*nodev1.GoldenInfo, error) {
	st, err := g.place()
	if err != nil {
		return nil, err
	}
	list, err := snapshot.ListGolden(ctx, st)
	if err != nil {
		return nil, err
	}
	out := make([]*nodev1.GoldenInfo, 0, len(list))
	for _, l := range list {
		out = append(out, &nodev1.GoldenInfo{
			Tag: l.Tag, Digest: l.Digest.String(), Image: l.Info.Image.String(), Name: l.Info.Name, Vmm: l.Info.VMM, Kernel: l.Info.Kernel,
			Memory: l.Info.Memory, Vcpus: uint32(l.Info.VCPUs), CreatedUnixNano: l.Created.UnixNano(), Bytes: l.Size,
		})
	}
	return out, nil
}

func (g *golden) place() (store.Store, error) {
	if g.repository() == "" {
		return nil, fmt.Errorf("golden snapshots: no registry.repository and no registry.layout is configured: %w", errdefs.ErrFailedPrecondition)
	}
	return g.Open(g.repository())
}

// Drop implements node.Golden. Snapshots that refer to its pages keep them.
func (g *golden) Drop(ctx context.Context, d, tag string) error {
	st, err := g.place()
	if err != nil {
		return err
	}
	if err := os.Remove(g.Config.GoldenTable(digest.Digest(d).Encoded())); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return snapshot.DropGolden(ctx, st, digest.Digest(d), tag)
}

// Make implements node.Golden: boot, ready, capture, end. Nothing but the snapshot stays,
// whatever fails.
func (g *golden) Make(ctx context.Context, req *nodev1.GoldenRequest) (_ *nodev1.GoldenResponse, err error) {
	if _, err := g.place(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Duration(req.GetTimeoutMs())*time.Millisecond)
	defer cancel()
	vm := &nodev1.VM{Namespace: req.GetNamespace(), Id: "golden-" + uuid.NewString()[:8]}
	g.own(vm, true)
	defer g.own(vm, false)
	begun := time.Now()
	booted, err := g.tasks.Boot(ctx, vm, req)
	defer func() { err = errors.Join(err, g.end(ctx, vm)) }()
	if err != nil {
		return nil, err
	}
	if err := g.tasks.Ready(ctx, booted, req.GetReady(), g.settled(vm)); err != nil {
		return nil, err
	}
	took := time.Since(begun)
	q, err := g.machines.Query(ctx, vm)
	if err != nil {
		return nil, err
	}
	capture := &machinev1.CaptureRequest{
		Ref:        &machinev1.Ref{Operation: vm.GetId(), Attempt: 1, Generation: q.GetGeneration()},
		Repository: g.repository(), EndExecs: true, PauseBudgetMs: -1,
		Make: &machinev1.Golden{Image: booted.Digest, Name: req.GetImage()},
	}
	before := g.tagged(ctx)
	resp, err := g.machines.Capture(ctx, vm, capture)
	if err != nil {
		return nil, err
	}
	g.replaced(ctx, before, digest.Digest(resp.GetDigest()))
	err = g.machines.Abort(ctx, vm, &machinev1.AbortRequest{Ref: capture.GetRef(), Reason: "the golden snapshot is made"})
	if err := g.ready(ctx, digest.Digest(resp.GetDigest())); err != nil { // the first to sleep reads it
		slog.WarnContext(ctx, "golden snapshot is not ready here", "digest", resp.GetDigest(), "error", err)
	}
	return &nodev1.GoldenResponse{
		Digest: resp.GetDigest(), Image: booted.Digest, ReadyMs: uint64(took.Milliseconds()),
		ResidentBytes: resp.GetResidentBytes(), PushedBytes: resp.GetPushedBytes(), Repository: g.repository(),
	}, err
}

// tagged are the golden snapshots that there are. Nobody needs to know: what cannot be
// answered is not replaced.
func (g *golden) tagged(ctx context.Context) map[string]digest.Digest {
	st, err := g.place()
	var tags []string
	if err == nil {
		tags, err = st.Tags(ctx)
	}
	all := map[string]digest.Digest{}
	for _, tag := range tags {
		info, e := st.Stat(ctx, store.Manifest(tag))
		if e == nil {
			all[tag] = info.Digest
		} else if !errdefs.IsNotFound(e) {
			err = errors.Join(err, e)
		}
	}
	if err != nil && !errdefs.IsNotFound(err) {
		slog.WarnContext(ctx, "look for golden snapshots", "error", err)
	}
	return all
}

// replaced deletes the golden snapshot whose tag this one has taken: without a tag it would
// stay for ever. Where the store refuses, it does.
func (g *golden) replaced(ctx context.Context, before map[string]digest.Digest, d digest.Digest) {
	now := g.tagged(ctx)
	for tag, old := range before {
		if old == d || now[tag] != d {
			continue
		}
		if err := g.Drop(ctx, old.String(), ""); err != nil {
			slog.WarnContext(ctx, "the golden snapshot that was replaced stays", "tag", tag, "digest", old, "error", err)
		}
	}
}

// settled tells that a VM without another sign is ready: the RAM in use has not grown by
// more than a little for a while.
func (g *golden) settled(vm *nodev1.VM) func(context.Context) (bool, error) {
	const little, while = 1 << 20, 3 * time.Second
	var at uint64
	var since time.Time
	return func(ctx context.Context) (bool, error) {
		q, err := g.machines.Query(ctx, vm)
		if err != nil {
			return false, err
		}
		if since.IsZero() || q.GetResident() > at+little {
			at, since = q.GetResident(), time.Now()
		}
		return time.Since(since) >= while, nil
	}
}

// goldenEnd bounds the end of the VM that a golden snapshot was made of.
const goldenEnd = time.Minute

// end removes a VM and its record.
func (g *golden) end(ctx context.Context, vm *nodev1.VM) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), goldenEnd)
	defer cancel()
	err := g.tasks.Unboot(ctx, vm)
	rec, e := g.records.Get(ctx, &nodev1.GetRequest{Vm: vm})
	if errdefs.IsNotFound(e) {
		return err
	}
	if e == nil {
		_, e = g.records.Remove(ctx, &nodev1.RemoveRequest{Vm: vm, Uid: rec.GetUid(), Force: true, DropSnapshots: true})
	}
	return errors.Join(err, e)
}

func (g *golden) own(vm *nodev1.VM, is bool) {
	g.making.Lock()
	defer g.making.Unlock()
	if g.busy == nil {
		g.busy = map[string]bool{}
	}
	g.busy[vm.GetId()] = is
}

// sweep ends the VMs of makers that are gone: of a daemon that was killed.
func (g *golden) sweep(ctx context.Context) error {
	vms, err := g.tasks.Unfinished(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, vm := range vms {
		g.making.Lock()
		busy := g.busy[vm.GetId()]
		g.making.Unlock()
		if !busy {
			errs = append(errs, g.end(ctx, vm))
		}
	}
	return errors.Join(errs...)
}
