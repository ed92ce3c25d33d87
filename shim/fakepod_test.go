package shim

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	agentv1 "godwit.dev/godwit/api/agent/v1"
	"godwit.dev/godwit/vmm"
)

// fakeGuestPod is what a guest has of a pod.
type fakeGuestPod struct {
	set        bool
	containers map[string]*agentv1.AddContainerRequest
	volumes    map[string]*agentv1.AddVolumeRequest
	removed    []string
	synced     map[string]*agentv1.SyncVolumeRequest // the last revision of each volume
	copied     []*agentv1.CopyRequest
	last       string   // what ReadBack answers
	hung       []string // calls that are not answered
	stuck      []string // calls that fail
}

// hang leaves calls of that name without an answer from now on.
func (a *fakeAgent) hang(name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.pod.hung = append(a.pod.hung, name)
}

// podCall is call, which may hang.
func (a *fakeAgent) podCall(ctx context.Context, name string) error {
	a.mu.Lock()
	hung, stuck := slices.Contains(a.pod.hung, name), slices.Contains(a.pod.stuck, name)
	a.mu.Unlock()
	if hung {
		<-ctx.Done()
		return ctx.Err()
	}
	if err := a.call(name); err != nil || !stuck {
		return err
	}
	return fmt.Errorf("%s: device or resource busy", name)
}

func (a *fakeAgent) SetupPod(context.Context, *agentv1.SetupPodRequest) (*agentv1.SetupPodResponse, error) {
	if err := a.call("set pod up"); err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.pod.set, a.pod.containers = true, map[string]*agentv1.AddContainerRequest{}
	a.pod.volumes = map[string]*agentv1.AddVolumeRequest{}
	return &agentv1.SetupPodResponse{}, nil
}

func (a *fakeAgent) AddVolume(_ context.Context, r *agentv1.AddVolumeRequest) (*agentv1.AddVolumeResponse, error) {
	if err := a.call("add volume"); err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.pod.volumes[r.GetId()] = r
	return &agentv1.AddVolumeResponse{}, nil
}

func (a *fakeAgent) RemoveVolume(ctx context.Context, r *agentv1.RemoveVolumeRequest) (*agentv1.RemoveVolumeResponse,
	error) {
	if err := a.podCall(ctx, "remove volume"); err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.pod.volumes, r.GetId())
	return &agentv1.RemoveVolumeResponse{}, nil
}

func (a *fakeAgent) SyncVolume(ctx context.Context, r *agentv1.SyncVolumeRequest) (*agentv1.SyncVolumeResponse,
	error) {
	if err := a.podCall(ctx, "sync volume"); err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.pod.synced == nil {
		a.pod.synced = map[string]*agentv1.SyncVolumeRequest{}
	}
	if r.GetLast() && r.GetRevision() > a.pod.synced[r.GetVolume()].GetRevision() {
		a.pod.synced[r.GetVolume()] = r
	}
	return &agentv1.SyncVolumeResponse{Revision: a.pod.synced[r.GetVolume()].GetRevision()}, nil
}

func (a *fakeAgent) AddContainer(ctx context.Context, r *agentv1.AddContainerRequest) (*agentv1.AddContainerResponse,
	error) {
	if err := a.podCall(ctx, "add container"); err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if slices.Contains(a.pod.removed, r.GetContainer()) {
		return nil, fmt.Errorf("container %s was removed: %w", r.GetContainer(), errdefs.ErrFailedPrecondition)
	}
	a.pod.containers[r.GetContainer()] = r
	return &agentv1.AddContainerResponse{}, nil
}

func (a *fakeAgent) RemoveContainer(ctx context.Context, r *agentv1.RemoveContainerRequest) (
	*agentv1.RemoveContainerResponse, error) {
	if err := a.podCall(ctx, "remove container"); err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.pod.containers[r.GetContainer()] == nil {
		return nil, fmt.Errorf("container %s: %w", r.GetContainer(), errdefs.ErrNotFound)
	}
	delete(a.pod.containers, r.GetContainer())
	a.pod.removed = append(a.pod.removed, r.GetContainer())
	return &agentv1.RemoveContainerResponse{}, nil
}

func (a *fakeAgent) ReadBack(context.Context, *agentv1.ReadBackRequest) (*agentv1.ReadBackResponse, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return &agentv1.ReadBackResponse{Data: []byte(a.pod.last)}, nil
}

func (a *fakeAgent) Copy(ctx context.Context, r *agentv1.CopyRequest) (*agentv1.CopyResponse, error) {
	if err := a.podCall(ctx, "copy files"); err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.pod.copied = append(a.pod.copied, r)
	return &agentv1.CopyResponse{}, nil
}

// has are the guest's containers, in order.
func (a *fakeAgent) has() (ids []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for id := range a.pod.containers {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// fakeHotDisks are those that were plugged into a VM.
type fakeHotDisks struct {
	has   []vmm.Disk
	stuck bool // the guest does not let go of any
}

func (m *fakeMachine) AddDisk(_ context.Context, d vmm.Disk) error {
	if err := m.call("add disk"); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	d.File = nil
	m.hot.has = append(m.hot.has, d)
	return nil
}

func (m *fakeMachine) RemoveDisk(_ context.Context, id string) error {
	if err := m.call("remove disk"); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.hot.stuck {
		m.hot.has = slices.DeleteFunc(m.hot.has, func(d vmm.Disk) bool { return d.ID == id })
	}
	return nil
}

func (m *fakeMachine) DiskEjected(_ context.Context, id string) (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return !slices.ContainsFunc(m.hot.has, func(d vmm.Disk) bool { return d.ID == id }), nil
}

// plugged are the disks that were added and not removed.
func (m *fakeMachine) plugged() (ids []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, d := range m.hot.has {
		ids = append(ids, d.ID)
	}
	return ids
}

// criBundle writes the config.json of a task of a pod, and answers the request of its Create.
func (w *world) criBundle(id string, notes map[string]string,
	namespaces ...specs.LinuxNamespace) *taskapi.CreateTaskRequest {
	dir, err := os.MkdirTemp(filepath.Dir(w.cfg.StateDir), "bundle")
	w.must("make bundle", err)
	oci := &specs.Spec{
		Version: specs.Version, Annotations: notes, Process: &specs.Process{Args: []string{"/bin/true"}, Cwd: "/"},
		Root: &specs.Root{Path: "rootfs"}, Hostname: "web",
		Linux: &specs.Linux{Namespaces: append(namespaces, specs.LinuxNamespace{Type: specs.MountNamespace})},
	}
	data, err := json.Marshal(oci)
	w.must("encode bundle", err)
	w.must("write bundle", os.WriteFile(filepath.Join(dir, "config.json"), data, 0o600))
	return &taskapi.CreateTaskRequest{ID: id, Bundle: dir}
}

const criNote = "io.kubernetes.cri."

// notesOf are CRI's annotations of a task of the pod whose sandbox is "vm".
func (w *world) notesOf(kind string) map[string]string {
	notes := map[string]string{criNote + "container-type": kind, criNote + "sandbox-id": "vm",
		criNote + "sandbox-name": "web", criNote + "sandbox-namespace": "team", criNote + "sandbox-uid": "u1"}
	maps.Copy(notes, w.podNotes)
	return notes
}

func (w *world) createPod() error {
	_, err := w.service.Create(ctxNS(w.t), w.sandboxRequest())
	return err
}

func (w *world) sandboxRequest() *taskapi.CreateTaskRequest {
	return w.criBundle("vm", w.notesOf("sandbox"),
		specs.LinuxNamespace{Type: specs.PIDNamespace}, specs.LinuxNamespace{Type: specs.IPCNamespace},
		specs.LinuxNamespace{Type: specs.UTSNamespace}, specs.LinuxNamespace{Type: specs.NetworkNamespace})
}

// memberRequest is the Create of a container of the pod, of that image.
func (w *world) memberRequest(id, image string) *taskapi.CreateTaskRequest {
	vm, err := w.service.current()
	w.must("find VM", err)
	vm.mu.Lock()
	holder := vm.owner.pid()
	vm.mu.Unlock()
	at := func(kind specs.LinuxNamespaceType, name string) specs.LinuxNamespace {
		return specs.LinuxNamespace{Type: kind, Path: fmt.Sprintf("/proc/%d/ns/%s", holder, name)}
	}
	notes := w.notesOf("container")
	notes[criNote+"container-name"], notes[criNote+"image-name"] = id, image
	r := w.criBundle(id, notes, specs.LinuxNamespace{Type: specs.PIDNamespace}, at(specs.IPCNamespace, "ipc"),
		at(specs.UTSNamespace, "uts"), at(specs.NetworkNamespace, "net"))
	r.Rootfs = imageMounts(image)
	return r
}

// edit changes the config.json of a Create.
func (w *world) edit(r *taskapi.CreateTaskRequest, change func(*specs.Spec)) *taskapi.CreateTaskRequest {
	w.t.Helper()
	path, oci := filepath.Join(r.GetBundle(), "config.json"), new(specs.Spec)
	data, err := os.ReadFile(path)
	w.must("read bundle", err)
	w.must("decode bundle", json.Unmarshal(data, oci))
	change(oci)
	data, err = json.Marshal(oci)
	w.must("encode bundle", err)
	w.must("write bundle", os.WriteFile(path, data, 0o600))
	return r
}

func (w *world) createMember(id, image string) error {
	_, err := w.service.Create(ctxNS(w.t), w.memberRequest(id, image))
	return err
}

func (w *world) startTask(id string) error {
	_, err := w.service.Start(ctxNS(w.t), &taskapi.StartRequest{ID: id})
	return err
}

func (w *world) deleteTask(id string) error {
	_, err := w.service.Delete(ctxNS(w.t), &taskapi.DeleteRequest{ID: id})
	return err
}

// runningPod has a sandbox and these containers, all of one image.
func (w *world) runningPod(containers ...string) *world {
	w.t.Helper()
	w.must("create pod", w.createPod())
	w.must("start pod", w.start())
	for _, id := range containers {
		w.must("create "+id, w.createMember(id, "alpine"))
		w.must("start "+id, w.startTask(id))
	}
	return w
}
