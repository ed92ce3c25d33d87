//go:build integration

package agent

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	agentv1 "godwit.dev/godwit/api/agent/v1"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// revision is a directory as kubelet writes it: two keys of one value, below a new directory to
// which the link ..data leads.
func revision(n int, keys ...string) []*agentv1.File {
	dir := fmt.Sprintf("..2026_%d", n)
	entries := []*agentv1.File{
		{Path: "/", Mode: unix.S_IFDIR | 0o777 | unix.S_ISVTX},
		{Path: dir, Mode: unix.S_IFDIR | 0o755},
		{Path: "..data", Mode: unix.S_IFLNK | 0o777, Link: dir},
	}
	for _, key := range keys {
		entries = append(entries,
			&agentv1.File{Path: dir + "/" + key, Mode: 0o644, Data: fmt.Appendf(nil, "%d\n", n)},
			&agentv1.File{Path: key, Mode: unix.S_IFLNK | 0o777, Link: "..data/" + key})
	}
	return entries
}

// A reader that reads two keys in the directory of one revision never sees them differ, and misses none
// while the link leads there. As with kubelet, the directory of an old revision goes.
func TestPodVolumeStaysFresh(t *testing.T) {
	m := newPod(t, nil)
	push := func(n int, last bool, entries ...*agentv1.File) error {
		_, err := m.agent.SyncVolume(t.Context(), &agentv1.SyncVolumeRequest{
			Volume: "conf", Revision: uint64(n), Entries: entries, Last: last,
		})
		return err
	}
	if err := push(1, true); !errdefs.IsNotFound(err) {
		t.Errorf("a volume that is not there: %v", err)
	}
	conf := &agentv1.AddVolumeRequest{Id: "conf", Kind: "memory", Mode: 0o755}
	if _, err := m.agent.AddVolume(t.Context(), conf); err != nil {
		t.Fatal(err)
	}
	if err := push(1, true, revision(1, "a", "b", "old")...); err != nil {
		t.Fatal(err)
	}
	m.plug(m.image("img1"))
	r := box("c1", "img1")
	r.Volumes = []*agentv1.VolumeMount{{Volume: "conf", Target: "/conf", Options: []string{"ro"}}}
	m.add(r)
	m.idle("c1")
	got := m.sh("c1", "touch /conf/x 2>&1; ls -A /conf | tr '\\n' ' '; stat -c %a /conf")
	if !strings.Contains(got, "Read-only") || !strings.Contains(got, "..2026_1 ..data a b old 1777") {
		t.Errorf("c1 sees %q", got)
	}
	// The reader enters the directory of a revision by way of the link, once for both keys.
	loop := `n=0; cd /; while [ ! -e /tmp/stop ]; do
cd -P /conf/..data || { echo no data; exit; }
set -- $(cat a b 2>/dev/null)
if [ $# = 2 ]; then n=$((n+1)); [ $1 = $2 ] || echo torn $1 $2
elif [ $PWD = /conf/$(readlink /conf/..data) ]; then echo early $PWD; fi
done; echo $n`
	if err := m.startIn("c1", "c1/reader#1.1", process("sh", "-c", loop)); err != nil {
		t.Fatal(err)
	}
	const revisions = 30
	for n := 2; n <= revisions; n++ {
		entries := revision(n, "a", "b")
		for _, e := range entries { // one message each
			if err := push(n, false, e); err != nil {
				t.Fatal(err)
			}
		}
		for range 2 {
			if err := push(n, true); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := push(2, true, revision(2, "a")...); err != nil { // too late: it changes nothing
		t.Error(err)
	}
	m.sh("c1", "touch /tmp/stop")
	read := m.finish("c1/reader#1.1", "")
	if out := strings.TrimSpace(read.Out); strings.ContainsAny(out, " \n") || out == "0" || out == "" {
		t.Errorf("the reader says %q, %q", read.Out, read.Err)
	}
	want := fmt.Sprintf("..2026_%d ..data a b", revisions)
	if got := m.sh("c1", "ls -A /conf | tr '\\n' ' '; cat /conf/b"); got != want+fmt.Sprintf(" %d", revisions) {
		t.Errorf("in the end %q", got)
	}
}

// The file that was copied in is read back, not what has its name by then, also after the end.
func TestPodReadBack(t *testing.T) {
	m := newPod(t, func(r *agentv1.SetupPodRequest) { r.Writable = nil })
	m.plug(m.image("img1"))
	r := box("c1", "img1")
	r.Setup.Files = []*agentv1.File{
		{Path: "/dev/termination-log", Mode: 0o666, Keep: true}, {Path: "/etc/hosts", Mode: 0o644, Data: []byte("first\n")},
	}
	m.add(r)
	read := func(path string, most uint32) (*agentv1.ReadBackResponse, error) {
		return m.agent.ReadBack(t.Context(), &agentv1.ReadBackRequest{Container: "c1", Path: path, Max: most})
	}
	script := `echo why >/dev/termination-log; mv /dev/termination-log /dev/other; ln -s /etc/passwd /dev/termination-log
read x; rm /dev/other; exit 3`
	if err := m.startIn("c1", "c1", process("sh", "-c", script)); err != nil {
		t.Fatal(err)
	}
	m.until(func() bool {
		b, err := read("/dev/termination-log", 0)
		if err != nil {
			t.Fatal(err)
		}
		return string(b.Data) == "why\n" && !b.Missing && b.Size == 4
	})
	if _, err := m.agent.Copy(t.Context(), &agentv1.CopyRequest{Container: "c1", Files: []*agentv1.File{
		{Path: "/etc/hosts", Mode: 0o644, Data: []byte("second\n")}}}); err != nil {
		t.Errorf("copy into a container that runs: %v", err)
	}
	if got := m.sh("c1", "cat /etc/hosts"); got != "second" {
		t.Errorf("hosts: %q", got)
	}
	if e := m.finish("c1", "go on\n"); e.Status != 3 {
		t.Errorf("%+v", e)
	}
	if b, err := read("/dev/termination-log", 3); err != nil || string(b.Data) != "hy\n" || !b.Missing || b.Size != 4 {
		t.Errorf("after the end: %v, %v", b, err)
	}
	if _, err := read("/etc/hosts", 0); !errdefs.IsNotFound(err) {
		t.Errorf("a file that was not to be kept: %v", err)
	}
	m.removeContainer("c1")
	m.eject("img1")
}

// The parts of an AddContainer that fail leave nothing: the disk can be ejected, the id used again.
func TestPodContainerIsUndone(t *testing.T) {
	m := newPod(t, nil)
	disk := m.image("img1")
	m.plug(disk)
	v := &agentv1.AddVolumeRequest{Id: "v", Kind: "disk", Mode: 0o777}
	if _, err := m.agent.AddVolume(t.Context(), v); err != nil {
		t.Fatal(err)
	}
	for name, bad := range map[string]struct {
		change func(*agentv1.AddContainerRequest)
		is     func(error) bool
	}{
		"no volume": {func(r *agentv1.AddContainerRequest) { r.Volumes[0].Volume = "w" }, errdefs.IsNotFound},
		"bad type":  {func(r *agentv1.AddContainerRequest) { r.Setup.Layers[0].Type = "ntfs" }, errdefs.IsNotImplemented},
		"bad mount": {func(r *agentv1.AddContainerRequest) {
			r.Setup.Mounts = append(r.Setup.Mounts, &agentv1.Mount{Type: "nfs", Target: "/x"})
		}, errdefs.IsNotImplemented},
		"bad file": {func(r *agentv1.AddContainerRequest) {
			r.Setup.Files = []*agentv1.File{{Path: "/x", Mode: unix.S_IFBLK}}
		}, errdefs.IsNotImplemented},
		"bad limits": {func(r *agentv1.AddContainerRequest) { r.Setup.Resources = []byte("{") }, errdefs.IsInvalidArgument},
		"no setup":   {func(r *agentv1.AddContainerRequest) { r.Setup = nil }, errdefs.IsInvalidArgument},
		"bad id":     {func(r *agentv1.AddContainerRequest) { r.Container = "../c1" }, errdefs.IsInvalidArgument},
		"the pod":    {func(r *agentv1.AddContainerRequest) { r.Container = "pod" }, errdefs.IsInvalidArgument},
	} {
		r := box("c1", "img1")
		r.Volumes = []*agentv1.VolumeMount{{Volume: "v", Target: "/v"}}
		bad.change(r)
		if _, err := m.agent.AddContainer(t.Context(), r); !bad.is(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	m.eject("img1")
	m.plug(disk)
	// Files that do not fit one message, and a subPath that would lead out of the volume.
	good := box("c1", "img1")
	big := bytes.Repeat([]byte("0123456789abcdef"), 100<<10)
	good.Setup.Files = []*agentv1.File{{Path: "/data/big", Mode: 0o644, Data: big}}
	good.Volumes = []*agentv1.VolumeMount{{Volume: "v", Target: "/v"}}
	m.add(good)
	m.idle("c1")
	if got := m.sh("c1", "wc -c </data/big; ln -s / /v/out; ln -s ../../.. /v/up"); got != fmt.Sprint(len(big)) {
		t.Errorf("the file has %s bytes", got)
	}
	sly := box("c2", "img1")
	for i, path := range []string{"out/run", "up/run", "../../run"} {
		sly.Volumes = append(sly.Volumes, &agentv1.VolumeMount{Volume: "v", Path: path, Target: fmt.Sprintf("/m%d", i)})
	}
	m.add(sly)
	m.idle("c2")
	if got := m.sh("c2", "ls -A /m0 /m1 /m2 | grep -v : | tr -d '\\n'"); got != "" {
		t.Errorf("a path below the volume leads to %q", got)
	}
	all, err := m.agent.Processes(t.Context(), &agentv1.ProcessesRequest{})
	if err != nil || len(all.Processes) < 3 {
		t.Errorf("%v, %v", all, err)
	}
	alone, err := m.agent.Processes(t.Context(), &agentv1.ProcessesRequest{Container: "c2"})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range alone.Processes {
		if !strings.HasPrefix(p.Id, "c2") {
			t.Errorf("a process of c2: %v", p)
		}
	}
	if _, err := m.agent.Setup(t.Context(), ociSetup()); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("the container of a guest without a pod: %v", err)
	}
}
