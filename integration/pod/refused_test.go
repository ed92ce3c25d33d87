//go:build integration

package pod

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/integration/images"
)

// ofHost is CRI's number of the host's namespace.
const ofHost = 2

// refusedPods are pods that no VM can be, and what the answer names.
func refusedPods() map[string]refusal {
	namespaces := func(more object) object {
		return object{"linux": object{"security_context": object{"namespace_options": more}}}
	}
	return map[string]refusal{
		"tight":       {object{"linux": object{"cgroup_parent": "/tight"}}, "overhead.podFixed.memory"},
		"hostnetwork": {namespaces(object{"network": ofHost}), "hostNetwork"},
		"hostpid":     {namespaces(object{"pid": ofHost}), "hostPID"},
		"hostipc":     {namespaces(object{"ipc": ofHost}), "hostIPC"},
	}
}

// refusal is what a configuration has in addition, and what the answer has in it.
type refusal struct {
	more object
	want string
}

func (r refusal) check(t *testing.T, name string, err error) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), r.want) {
		t.Errorf("%s: the answer does not name %q: %v", name, r.want, err)
	}
}

// tight makes a cgroup whose memory limit leaves a VM no room, with either version of cgroups.
const tight = `cd /sys/fs/cgroup; file=memory.max; [ -d memory ] && cd memory && file=memory.limit_in_bytes
mkdir -p tight && echo 67108864 >tight/$file`

// TestRefusedPods: what a pod cannot have is refused by name, before there is a VM, and nothing is left.
func TestRefusedPods(t *testing.T) {
	n := open(t, harness.Newest)
	if out, err := n.Run(t.Context(), "sh", "-c", tight); err != nil {
		t.Fatal(out, err)
	}
	empty, err := n.Inventory(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range refusedPods() {
		_, err := n.try(t.Context(), "runp", "--runtime", "godwit", n.sandbox(name, c.more))
		c.check(t, name, err)
		for _, id := range strings.Fields(n.crictl("pods", "-q")) {
			n.crictl("rmp", "-f", id)
		}
		if err := n.Clean(t.Context(), empty); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if left := n.vms(); len(left) > 0 {
		t.Errorf("VMs are left: %q", left)
	}
}

// refusedContainers are containers that a pod cannot have.
func (n *node) refusedContainers(uid string) map[string]refusal {
	volume := func(name string, files int, size int) string {
		dir := filepath.Join(n.Dir, "kubelet/pods", uid, "volumes/kubernetes.io~configmap", name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			n.t.Fatal(err)
		}
		for i := range files {
			if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("key%d", i)), make([]byte, size), 0o644); err != nil {
				n.t.Fatal(err)
			}
		}
		return dir
	}
	shared := filepath.Join(n.Dir, "shared")
	if err := os.MkdirAll(shared, 0o755); err != nil {
		n.t.Fatal(err)
	}
	mounted := func(dir string) object {
		return object{"mounts": []object{{"host_path": dir, "container_path": "/data"}}}
	}
	claim := filepath.Join(n.Dir, "kubelet/pods", uid, "volumes/kubernetes.io~csi/pvc-1/mount")
	if err := os.MkdirAll(claim, 0o755); err != nil {
		n.t.Fatal(err)
	}
	return map[string]refusal{
		"hostpath": {mounted(shared), "mount /data"},
		"claim":    {mounted(claim), "kubernetes.io/csi"},
		"large":    {mounted(volume("large", 1, 5<<20)), "more than 4 MiB or 1000 files"},
		"many":     {mounted(volume("many", 2000, 1)), "more than 4 MiB or 1000 files"},
		"device": {object{"devices": []object{{"container_path": "/dev/kmsg", "host_path": "/dev/kmsg",
			"permissions": "rwm"}}}, "/dev/kmsg"},
		"propagation": {object{"mounts": []object{{"host_path": shared, "container_path": "/data", "readonly": true,
			"propagation": 2}}}, "Bidirectional"},
		"socket":     {mounted(n.Socket), "mount /data"},
		"annotation": {object{"annotations": object{"godwit.dev/memory": "2GiB"}}, "godwit.dev/memory"},
	}
}

// TestRefusedContainers: what a container of a pod cannot have is refused by name. Its pod lives on, and its VM is not
// touched: journal and processes are as before.
func TestRefusedContainers(t *testing.T) {
	n := open(t, harness.Newest)
	config := n.sandbox("host", nil)
	pod := n.crictl("runp", "--runtime", "godwit", config)
	run := func(name string, more object) (string, error) {
		id := n.crictl("create", "--no-pull", pod, n.container(name, "sleep 10000", more), config)
		return n.try(t.Context(), "start", id)
	}
	if out, err := run("fine", nil); err != nil {
		t.Fatal(out)
	}
	before, empty := n.journal(pod), n.processes()
	for name, c := range n.refusedContainers("uid-host") {
		_, err := run(name, c.more)
		c.check(t, name, err)
		if now := n.journal(pod); now != before {
			t.Errorf("%s: the VM's journal has changed from\n%s to\n%s", name, before, now)
		}
		if now := n.processes(); now != empty {
			t.Errorf("%s: processes were\n%s and are\n%s", name, empty, now)
		}
	}
	t.Run("host's devices", n.privileged)
	t.Run("image is gone", func(t *testing.T) { n.imageGone(t, pod, config) })
	n.crictl("rmp", "-f", pod)
}

// privileged: the runtime handler gives a privileged container the devices of the host, and no VM takes them.
func (n *node) privileged(t *testing.T) {
	all := object{"linux": object{"security_context": object{"privileged": true}}}
	config := n.sandbox("all", all)
	pod := n.crictl("runp", "--runtime", "godwit-devices", config)
	id := n.crictl("create", "--no-pull", pod, n.container("all", "sleep 10000", all), config)
	_, err := n.try(t.Context(), "start", id)
	refusal{want: "linux.devices /dev/"}.check(t, "privileged", err)
	refusal{want: "privileged_without_host_devices = true"}.check(t, "privileged", err)
	n.crictl("rmp", "-f", pod)
}

// imageGone: an image is removed between Create and Start of its container, whose snapshot has it still. The next
// Create is refused.
func (n *node) imageGone(t *testing.T, pod, config string) {
	n.numbered(t, 1)
	gone := object{"image": object{"image": numbered(0)}}
	id := n.crictl("create", "--no-pull", pod, n.container("gone", "sleep 10000", gone), config)
	n.crictl("rmi", numbered(0))
	n.crictl("start", id)
	if out := n.crictl("exec", id, "cat", "/etc/number"); out != "0" {
		t.Errorf("the container has %q", out)
	}
	_, err := n.try(t.Context(), "create", "--no-pull", pod, n.container("again", "sleep 1", gone), config)
	refusal{want: numbered(0)}.check(t, "image", err)
}

// vms are the directories of the node's VMs, of all namespaces.
func (n *node) vms() (dirs []string) {
	n.t.Helper()
	root := filepath.Join(n.StateDir(), "vms")
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		below, _ := filepath.Rel(root, path)
		if err != nil || !d.IsDir() || filepath.Dir(below) == "." {
			return err
		}
		dirs = append(dirs, path)
		return fs.SkipDir
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		n.t.Fatal(err)
	}
	return dirs
}

// journal is what the node knows of the VM of a pod.
func (n *node) journal(pod string) string {
	n.t.Helper()
	found := n.vms()
	if len(found) != 1 {
		n.t.Fatalf("the node has VMs %q", found)
	}
	data, err := os.ReadFile(filepath.Join(found[0], "node.json"))
	if err != nil {
		n.t.Fatal(err)
	}
	return string(data)
}

// processes are those of godwit on the node.
func (n *node) processes() string {
	n.t.Helper()
	out, err := n.Run(n.t.Context(), "sh", "-c",
		`for p in /proc/[0-9]*; do [ $p = /proc/$$ ] && continue; c=$(tr '\0' ' ' <$p/cmdline)
		case $c in *godwit-v1*|*qemu-system*|*cloud-hypervisor*) echo ${p#/proc/} $c;; esac; done`)
	if err != nil {
		n.t.Fatal(err)
	}
	return out
}

// numbered is the name of an image that numbered makes.
func numbered(i int) string { return fmt.Sprintf("localhost/godwit/number:%d", i) }

// numbered brings images of busybox to the node, each with a file of its own.
func (n *node) numbered(t *testing.T, count int) {
	busybox, err := os.ReadFile("/bin/busybox")
	if err != nil {
		t.Fatal(err)
	}
	var all []images.Image
	for i := range count {
		files := []images.File{{Name: "bin", Mode: fs.ModeDir | 0o755}, {Name: "etc", Mode: fs.ModeDir | 0o755},
			{Name: "proc", Mode: fs.ModeDir | 0o755}, {Name: "sys", Mode: fs.ModeDir | 0o755},
			{Name: "dev", Mode: fs.ModeDir | 0o755}, {Name: "bin/busybox", Mode: 0o755, Data: busybox}}
		for _, applet := range []string{"sh", "sleep", "cat"} {
			files = append(files, images.File{Name: "bin/" + applet, Mode: 0o755, Link: "bin/busybox"})
		}
		files = append(files, images.File{Name: "etc/number", Mode: 0o644, Data: fmt.Appendf(nil, "%d", i)})
		all = append(all, images.Image{Name: numbered(i), Config: v1.Config{Env: []string{"PATH=/bin"}},
			Layers: [][]images.File{files}})
	}
	archive := filepath.Join(t.TempDir(), "images.tar")
	if err := images.Write(archive, all...); err != nil {
		t.Fatal(err)
	}
	if out, err := n.RunCtr(t.Context(), "-n", "k8s.io", "images", "import", "--local", archive); err != nil {
		t.Fatal(out, err)
	}
	n.eventually("the imported images", has(numbered(count-1)), "inspecti", numbered(count-1))
}

// TestImagesOfAPod: a pod has 16 images at a time. The 17th is refused with the number, and the pod lives on. Once a
// container has gone, there is room.
func TestImagesOfAPod(t *testing.T) {
	n := open(t, harness.Newest)
	const most = 16
	n.numbered(t, most+1)
	config := n.sandbox("full", object{"annotations": object{"godwit.dev/memory": "512MiB"}})
	pod := n.crictl("runp", "--runtime", "godwit", config)
	create := func(i int) string {
		return n.crictl("create", "--no-pull", pod,
			n.container(fmt.Sprintf("c%d", i), "sleep 10000", object{"image": object{"image": numbered(i)}}), config)
	}
	var ids []string
	for i := range most {
		ids = append(ids, create(i))
		n.crictl("start", ids[i])
	}
	last := create(most)
	_, err := n.try(t.Context(), "start", last)
	refusal{want: "16 images"}.check(t, "the 17th image", err)
	refusal{want: "ResourceExhausted"}.check(t, "the 17th image", err)
	for i, id := range ids {
		if out := n.crictl("exec", id, "cat", "/etc/number"); out != fmt.Sprint(i) {
			t.Errorf("container %d has image %q", i, out)
		}
	}
	n.crictl("rm", "-f", ids[3])
	n.crictl("rm", last)
	id := create(most)
	n.crictl("start", id)
	if out := n.crictl("exec", id, "cat", "/etc/number"); out != fmt.Sprint(most) {
		t.Errorf("the container in the place of another one has image %q", out)
	}
	n.crictl("rmp", "-f", pod)
}
