//go:build integration

package agent

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	agentv1 "godwit.dev/godwit/api/agent/v1"
	"godwit.dev/godwit/vmm"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// newPod boots a VM with a pod. Its disk is there at boot, those of images are plugged in.
func newPod(t *testing.T, change func(*agentv1.SetupPodRequest)) *machine {
	t.Helper()
	m := newMachine(t)
	m.hot, m.disks = true, m.disks[1:] // rw becomes the pod's
	m.disks[0].Slot = m.slot
	m.boot()
	r := &agentv1.SetupPodRequest{
		Hostname: "pod", Sysctl: map[string]string{"kernel.shmmax": "65536"},
		Writable: &agentv1.Disk{Serial: "rw", Type: "ext4"},
	}
	if change != nil {
		change(r)
	}
	for range 2 { // it is idempotent
		if _, err := m.agent.SetupPod(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

// image makes a disk that is not plugged in yet.
func (m *machine) image(serial string) vmm.Disk {
	m.t.Helper()
	path := filepath.Join(m.dir, "layer.erofs")
	file, err := os.Open(path)
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() { file.Close() })
	hot := m.hotSlot + m.plugged
	m.plugged++
	return vmm.Disk{ID: serial, Serial: serial, Slot: hot, File: file, ReadOnly: true}
}

func (m *machine) plug(d vmm.Disk) {
	m.t.Helper()
	if err := m.vm.AddDisk(m.t.Context(), d); err != nil {
		m.t.Fatal(err)
	}
}

// eject fails if the guest still uses the disk.
func (m *machine) eject(serial string) {
	m.t.Helper()
	if err := m.vm.RemoveDisk(m.t.Context(), serial); err != nil {
		m.t.Fatal(err)
	}
	m.until(func() bool {
		gone, err := m.vm.DiskEjected(m.t.Context(), serial)
		if err != nil {
			m.t.Fatal(err)
		}
		return gone
	})
}

// box is a request for a container from a disk.
func box(id, serial string) *agentv1.AddContainerRequest {
	r := &agentv1.AddContainerRequest{Container: id, Setup: ociSetup()}
	r.Setup.Layers[0].Serial = serial
	return r
}

func limited(t *testing.T, r *agentv1.AddContainerRequest, bytes int64) *agentv1.AddContainerRequest {
	t.Helper()
	r.Setup.Resources = memoryLimit(t, bytes)
	return r
}

func memoryLimit(t *testing.T, bytes int64) []byte {
	t.Helper()
	data, err := json.Marshal(specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: &bytes}})
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func (m *machine) add(r *agentv1.AddContainerRequest) {
	m.t.Helper()
	for range 2 { // it is idempotent
		if _, err := m.agent.AddContainer(m.t.Context(), r); err != nil {
			m.t.Fatal(err)
		}
	}
}

// idle starts a container that stays.
func (m *machine) idle(id string) {
	m.t.Helper()
	if err := m.startIn(id, id, process("sleep", "100000")); err != nil {
		m.t.Fatal(err)
	}
}

// sh runs a script in a container and answers its output.
func (m *machine) sh(container, script string) string {
	m.t.Helper()
	m.execs++
	id := fmt.Sprintf("%s/e#%d.1", container, m.execs)
	if err := m.startIn(container, id, process("sh", "-c", script)); err != nil {
		m.t.Fatal(err)
	}
	r := m.finish(id, "")
	return strings.TrimSpace(r.Out + r.Err)
}

func (m *machine) wait(id string) *agentv1.WaitResponse {
	m.t.Helper()
	w, err := m.agent.Wait(m.t.Context(), &agentv1.WaitRequest{Id: id})
	if err != nil {
		m.t.Fatal(err)
	}
	return w
}

func (m *machine) removeContainer(id string) {
	m.t.Helper()
	if _, err := m.agent.RemoveContainer(m.t.Context(), &agentv1.RemoveContainerRequest{Container: id}); err != nil {
		m.t.Fatal(err)
	}
	_, err := m.agent.RemoveContainer(m.t.Context(), &agentv1.RemoveContainerRequest{Container: id})
	if !errdefs.IsNotFound(err) {
		m.t.Errorf("remove again: %v", err)
	}
}

// Three containers of disks that were plugged in: c1 has a pid namespace of its own, c2 the pod's,
// c3 that of c1. They share ipc, uts, network and a volume, and nothing else.
func TestPod(t *testing.T) {
	m := newPod(t, nil)
	info, err := m.agent.Info(t.Context(), &agentv1.InfoRequest{})
	if err != nil || fmt.Sprint(info.Features) != "[pod connect]" {
		t.Fatalf("%v, %v", info, err)
	}
	for _, v := range []*agentv1.AddVolumeRequest{
		{Id: "scratch", Kind: "disk", Mode: 0o777}, {Id: "shm", Kind: "memory", Size: 1 << 20, Mode: 0o1777},
	} {
		for range 2 {
			if _, err := m.agent.AddVolume(t.Context(), v); err != nil {
				t.Fatal(err)
			}
		}
	}
	volumes := func(path string) []*agentv1.VolumeMount {
		return []*agentv1.VolumeMount{
			{Volume: "scratch", Path: path, Target: "/scratch", Options: []string{"rbind", "rw"}},
			{Volume: "shm", Target: "/dev/shm"},
		}
	}
	// The call comes before the disk.
	one := limited(t, box("c1", "img1"), 64<<20)
	one.Volumes = volumes("")
	disk, added := m.image("img1"), make(chan error, 1)
	go func() { _, err := m.agent.AddContainer(t.Context(), one); added <- err }()
	m.plug(disk)
	if err := <-added; err != nil {
		t.Fatal(err)
	}
	m.plug(m.image("img2"))
	two, three := limited(t, box("c2", "img2"), 48<<20), box("c3", "img1")
	two.Pid, three.Pid = "pod", "c1"
	two.Volumes, three.Volumes = volumes(""), volumes("deep/er")
	if _, err := m.agent.AddContainer(t.Context(), three); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("join of a pid namespace that is not there: %v", err)
	}
	m.idle("c1")
	for _, r := range []*agentv1.AddContainerRequest{one, two, three} {
		m.add(r)
	}
	m.idle("c2")
	m.idle("c3")
	m.namespaces(t)
	m.sharing(t)
	m.limits(t)
	m.ends(t)
}

func (m *machine) namespaces(t *testing.T) {
	t.Helper()
	start := func(id string) uint32 {
		r, err := m.agent.Start(t.Context(), &agentv1.StartRequest{Id: id})
		if err != nil {
			t.Fatal(err)
		}
		return r.Pid
	}
	if pid := start("pod"); pid == 0 || pid != start("pod") {
		t.Errorf("pid of the pod: %d", pid)
	}
	for container, want := range map[string]string{"c1": "sleep", "c2": "/pause", "c3": "sleep"} {
		if got := m.sh(container, "tr '\\0' ' ' </proc/1/cmdline"); !strings.HasPrefix(got, want) {
			t.Errorf("process 1 in %s is %q, not %q", container, got, want)
		}
	}
	if got := m.sh("c3", "ps | grep -c '[s]leep 100000'"); got != "2" {
		t.Errorf("c3 sees %s of the two inits", got)
	}
	if got := m.sh("c2", "for t in /proc/1/task/*; do ls -A $t/root/ 2>&1; done"); strings.Contains(got, "proc\n") {
		t.Errorf("the process that holds the namespaces sees %q", got)
	}
	ns := func(container string) map[string]string {
		out := map[string]string{}
		for _, name := range []string{"ipc", "uts", "net", "pid", "mnt", "cgroup"} {
			out[name] = m.sh(container, "readlink /proc/self/ns/"+name)
		}
		return out
	}
	a, b, c := ns("c1"), ns("c2"), ns("c3")
	shared := map[string]bool{"ipc": true, "uts": true, "net": true, "pid": false, "mnt": false, "cgroup": false}
	for name, same := range shared {
		if (a[name] == b[name]) != same {
			t.Errorf("%s: %s and %s", name, a[name], b[name])
		}
	}
	if a["pid"] != c["pid"] || a["mnt"] == c["mnt"] || a["cgroup"] == c["cgroup"] {
		t.Errorf("c1 %v, c3 %v", a, c)
	}
}

func (m *machine) sharing(t *testing.T) {
	t.Helper()
	for _, c := range []string{"c1", "c2", "c3"} {
		if got := m.sh(c, "hostname; cat /proc/sys/kernel/shmmax"); got != "pod\n65536" {
			t.Errorf("%s: %q", c, got)
		}
	}
	m.sh("c1", "echo one >/scratch/file; echo mine >/own; echo shm >/dev/shm/x; echo sub >/scratch/deep/er/s")
	got := m.sh("c2", "cat /scratch/file /dev/shm/x; ls /own 2>&1; stat -f -c %T /dev/shm")
	if !strings.HasPrefix(got, "one\nshm\nls:") || !strings.Contains(got, "tmpfs") {
		t.Errorf("c2 sees %q", got)
	}
	got = m.sh("c3", "cat /scratch/s; ls -a /scratch/..")
	if !strings.HasPrefix(got, "sub") || strings.Contains(got, "file") {
		t.Errorf("c3 sees %q", got)
	}
	// localhost
	listen := process("sh", "-c", "nc -l -p 80 </dev/null >/scratch/heard")
	if err := m.startIn("c1", "c1/nc#1.1", listen); err != nil {
		t.Fatal(err)
	}
	m.until(func() bool { return m.sh("c2", "echo said | nc 127.0.0.1 80 2>&1; cat /scratch/heard") == "said" })
	_, err := m.agent.RemoveVolume(t.Context(), &agentv1.RemoveVolumeRequest{Id: "scratch"})
	if !errdefs.IsFailedPrecondition(err) {
		t.Errorf("remove of a volume in use: %v", err)
	}
}

func (m *machine) limits(t *testing.T) {
	t.Helper()
	stats := func(container string) *agentv1.StatsResponse {
		st, err := m.agent.Stats(t.Context(), &agentv1.StatsRequest{Container: container})
		if err != nil {
			t.Fatal(err)
		}
		return st
	}
	if a, b := stats("c1"), stats("c2"); a.MemoryLimit != 64<<20 || b.MemoryLimit != 48<<20 || a.PidsCurrent == 0 {
		t.Errorf("limits %d and %d, %d processes", a.MemoryLimit, b.MemoryLimit, a.PidsCurrent)
	}
	update := &agentv1.UpdateRequest{Container: "c2", Resources: memoryLimit(t, 24<<20)}
	if _, err := m.agent.Update(t.Context(), update); err != nil {
		t.Fatal(err)
	}
	if a, b := stats("c1"), stats("c2"); a.MemoryLimit != 64<<20 || b.MemoryLimit != 24<<20 {
		t.Errorf("after an update of c2: limits %d and %d", a.MemoryLimit, b.MemoryLimit)
	}
	if whole := stats(""); whole.PidsCurrent < stats("c1").PidsCurrent+stats("c2").PidsCurrent {
		t.Errorf("the pod has %d processes", whole.PidsCurrent)
	}
	if err := m.startIn("c2", "c2/hog#1.1", process("sh", "-c", "x=1234567890; while true; do x=$x$x; done")); err != nil {
		t.Fatal(err)
	}
	if w := m.wait("c2"); w.ExitStatus != 137 || !w.Oom {
		t.Errorf("c2: %v", w)
	}
	if a, b := stats("c1"), stats("c2"); a.OomKills != 0 || b.OomKills == 0 {
		t.Errorf("kills for memory: c1 %d, c2 %d", a.OomKills, b.OomKills)
	}
	for _, c := range []string{"c1", "c3"} {
		if got := m.sh(c, "echo alive"); got != "alive" {
			t.Errorf("%s: %q", c, got)
		}
	}
}

func (m *machine) ends(t *testing.T) {
	t.Helper()
	m.removeContainer("c2")
	m.eject("img2")
	if _, err := m.agent.AddContainer(t.Context(), box("c2", "img1")); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("an id that was removed: %v", err)
	}
	// A new one in the pod's pid namespace: what its init leaves ends with it.
	four := box("c4", "img1")
	four.Pid = "pod"
	m.add(four)
	if err := m.startIn("c4", "c4", process("sh", "-c", "sleep 99999 & sleep 100000")); err != nil {
		t.Fatal(err)
	}
	m.until(func() bool { return m.sh("c4", "ps | grep -c '[s]leep 99999'") != "0" })
	if _, err := m.agent.Kill(t.Context(), &agentv1.KillRequest{Id: "c4", Signal: uint32(unix.SIGKILL)}); err != nil {
		t.Fatal(err)
	}
	if w := m.wait("c4"); w.ExitStatus != 137 || w.Oom {
		t.Errorf("c4: %v", w)
	}
	m.until(func() bool {
		st, err := m.agent.Stats(t.Context(), &agentv1.StatsRequest{Container: "c4"})
		return err == nil && st.PidsCurrent == 0
	})
	if got := m.sh("c1", "echo alive"); got != "alive" {
		t.Errorf("c1 after the end of c4: %q", got)
	}
	// c3 ends with c1, whose pid namespace it joined.
	all := &agentv1.KillRequest{Id: "c1", Signal: uint32(unix.SIGKILL), All: true}
	if _, err := m.agent.Kill(t.Context(), all); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"c1", "c3"} {
		if w := m.wait(id); w.ExitStatus != 137 {
			t.Errorf("%s: %v", id, w)
		}
	}
	for _, id := range []string{"c1", "c3", "c4"} {
		m.removeContainer(id)
	}
	m.eject("img1")
	for _, id := range []string{"scratch", "shm"} {
		if _, err := m.agent.RemoveVolume(t.Context(), &agentv1.RemoveVolumeRequest{Id: id}); err != nil {
			t.Error(err)
		}
	}
	if _, err := m.agent.Kill(t.Context(), &agentv1.KillRequest{Id: "pod", Signal: uint32(unix.SIGTERM)}); err != nil {
		t.Fatal(err)
	}
	if w := m.wait("pod"); w.ExitStatus != 0 {
		t.Errorf("pod: %v", w)
	}
	if _, err := m.agent.AddContainer(t.Context(), box("c5", "img1")); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("a container after the pod's end: %v", err)
	}
}
