// Package goldens makes golden snapshots of images, and has the one of a VM's image ready when
// the VM goes to sleep.
package goldens

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/migrate/tasks"
)

// Shelf is where golden snapshots lie.
type Shelf interface {
	// Repository of them. FailedPrecondition: the node has no store.
	Repository() (string, error)
	// Find answers the digest of the one of an image that has most in common with a VM, or nothing.
	Find(ctx context.Context, image string, vm *machinev1.QueryResponse) (digest string, err error)
	// Ready reads one, so that the next push can use it.
	Ready(ctx context.Context, digest string) error
	// Replacing notes what there is, and answers what deletes the one whose place another has taken.
	Replacing(ctx context.Context) (replaced func(ctx context.Context, digest string))
}

// Machines asks shims.
type Machines interface {
	Query(ctx context.Context, vm *nodev1.VM) (*machinev1.QueryResponse, error)
	Capture(ctx context.Context, vm *nodev1.VM, req *machinev1.CaptureRequest) (*machinev1.CaptureResponse, error)
	Abort(ctx context.Context, vm *nodev1.VM, req *machinev1.AbortRequest) error
}

// Tasks is containerd's side.
type Tasks interface {
	Image(ctx context.Context, vm *nodev1.VM) (name, digest string, err error)
	Boot(ctx context.Context, vm *nodev1.VM, req *nodev1.GoldenRequest) (*tasks.Booted, error)
	Ready(ctx context.Context, b *tasks.Booted, command string, settled func(context.Context) (bool, error)) error
	Unboot(ctx context.Context, vm *nodev1.VM) error
	Unfinished(ctx context.Context) ([]*nodev1.VM, error)
}

// Maker makes golden snapshots.
type Maker struct {
	Shelf    Shelf
	Tasks    Tasks
	Machines Machines
	Records  nodev1.RecordsService
	// Off: snapshots of this node's VMs refer to none (template.image.mode).
	Off bool

	mu   sync.Mutex
	busy map[string]bool // VMs that a golden snapshot is being made of
}

// findBound is what a hibernate waits for the store, and for a golden snapshot that this node has not read.
const findBound = time.Minute

// Golden implements engine.Golden: the snapshot of the VM's image whose table lies ready.
// It is never worth more than bytes: whatever goes wrong is said, and that is all.
func (m *Maker) Golden(ctx context.Context, vm *nodev1.VM) string {
	if m.Off {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, findBound)
	defer cancel()
	d, err := m.find(ctx, vm)
	if err == nil && d != "" {
		err = m.Shelf.Ready(ctx, d)
	}
	if err != nil {
		slog.WarnContext(ctx, "golden snapshot is not used", "vm", vm.GetNamespace()+"/"+vm.GetId(), "digest", d,
			"reason", err)
		return ""
	}
	return d
}

func (m *Maker) find(ctx context.Context, vm *nodev1.VM) (string, error) {
	if _, err := m.Shelf.Repository(); err != nil {
		return "", nil // without a store nothing sleeps
	}
	_, image, err := m.Tasks.Image(ctx, vm)
	if err != nil || image == "" {
		return "", err
	}
	q, err := m.Machines.Query(ctx, vm)
	if err != nil {
		return "", err
	}
	return m.Shelf.Find(ctx, image, q)
}

// Make boots an image, waits until it is ready, captures it and ends it. Nothing but the
// snapshot stays, whatever fails.
func (m *Maker) Make(ctx context.Context, order *nodev1.TemplateMakeRequest) (_ *nodev1.TemplateMakeResponse,
	err error) {
	req := order.GetImage()
	repository, err := m.Shelf.Repository()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Duration(req.GetTimeoutMs())*time.Millisecond)
	defer cancel()
	vm := &nodev1.VM{Namespace: req.GetNamespace(), Id: tasks.MakerID()}
	m.own(vm, true)
	defer m.own(vm, false)
	begun := time.Now()
	booted, err := m.Tasks.Boot(ctx, vm, req)
	defer func() { err = errors.Join(err, m.end(ctx, vm)) }()
	if err != nil {
		return nil, err
	}
	if err := m.Tasks.Ready(ctx, booted, req.GetReady(), m.settled(vm)); err != nil {
		return nil, err
	}
	took := time.Since(begun)
	q, err := m.Machines.Query(ctx, vm)
	if err != nil {
		return nil, err
	}
	capture := &machinev1.CaptureRequest{
		Ref:        &machinev1.Ref{Operation: vm.GetId(), Attempt: 1, Generation: q.GetGeneration()},
		Repository: repository, EndExecs: true, PauseBudgetMs: -1,
		Make: &machinev1.Golden{Image: booted.Digest, Name: req.GetImage()},
	}
	replaced := m.Shelf.Replacing(ctx)
	resp, err := m.Machines.Capture(ctx, vm, capture)
	if err != nil {
		return nil, err
	}
	replaced(ctx, resp.GetDigest())
	err = m.Machines.Abort(ctx, vm, &machinev1.AbortRequest{Ref: capture.GetRef(), Reason: "the golden snapshot is made"})
	if err := m.Shelf.Ready(ctx, resp.GetDigest()); err != nil { // the first to sleep reads it
		slog.WarnContext(ctx, "golden snapshot is not ready here", "digest", resp.GetDigest(), "error", err)
	}
	return &nodev1.TemplateMakeResponse{
		Template: &nodev1.TemplateInfo{
			Kind: nodev1.TemplateKind_TEMPLATE_KIND_IMAGE, Name: resp.GetDigest(), Image: req.GetImage(),
			ImageDigest: booted.Digest,
			Vmm:         q.GetVmm(), Kernel: q.GetKernel(), Memory: q.GetMemory(), Vcpus: q.GetVcpus(),
			CreatedUnixNano: time.Now().UnixNano(),
		},
		Repository: repository, ReadyMs: uint64(took.Milliseconds()), TookMs: uint64(time.Since(begun).Milliseconds()),
		ResidentBytes: resp.GetResidentBytes(), PushedBytes: resp.GetPushedBytes(),
	}, err
}

// settled tells that a VM without another sign is ready: the RAM in use has not grown by
// more than a little for a while.
func (m *Maker) settled(vm *nodev1.VM) func(context.Context) (bool, error) {
	const little, while = 1 << 20, 3 * time.Second
	var at uint64
	var since time.Time
	return func(ctx context.Context) (bool, error) {
		q, err := m.Machines.Query(ctx, vm)
		if err != nil {
			return false, err
		}
		if since.IsZero() || q.GetResident() > at+little {
			at, since = q.GetResident(), time.Now()
		}
		return time.Since(since) >= while, nil
	}
}

// endBound is of the end of the VM that a golden snapshot was made of.
const endBound = time.Minute

// end removes a VM and its record.
func (m *Maker) end(ctx context.Context, vm *nodev1.VM) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endBound)
	defer cancel()
	err := m.Tasks.Unboot(ctx, vm)
	rec, e := m.Records.Get(ctx, &nodev1.GetRequest{Vm: vm})
	if errdefs.IsNotFound(e) {
		return err
	}
	if e == nil {
		_, e = m.Records.Remove(ctx, &nodev1.RemoveRequest{Vm: vm, Uid: rec.GetUid(), Force: true, DropSnapshots: true})
	}
	return errors.Join(err, e)
}

func (m *Maker) own(vm *nodev1.VM, is bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.busy == nil {
		m.busy = map[string]bool{}
	}
	if m.busy[vm.GetId()] = is; !is {
		delete(m.busy, vm.GetId())
	}
}

// Sweep ends the VMs of makers that are gone: of a daemon that was killed.
func (m *Maker) Sweep(ctx context.Context) error {
	vms, err := m.Tasks.Unfinished(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, vm := range vms {
		m.mu.Lock()
		busy := m.busy[vm.GetId()]
		m.mu.Unlock()
		if !busy {
			errs = append(errs, m.end(ctx, vm))
		}
	}
	return errors.Join(errs...)
}
