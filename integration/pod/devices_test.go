//go:build integration

package pod

import (
	"encoding/base64"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/mount"

	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/internal/loopdevice"
)

// deviceSize is that of the devices of these tests.
const deviceSize = 64 << 20

// leave has the node's CSI driver leave the file system on a device to the VM, as it does for kata. It answers where a
// kubelet would have the volume.
func (n *node) leave(device string) (volume string) {
	n.t.Helper()
	volume = filepath.Join(n.Dir, "kubelet/pods/uid-devices/volumes/kubernetes.io~csi/pv/mount")
	if err := os.MkdirAll(volume, 0o755); err != nil {
		n.t.Fatal(err)
	}
	told := filepath.Join("/run/kata-containers/shared/direct-volumes", base64.URLEncoding.EncodeToString([]byte(volume)))
	info := fmt.Sprintf(`{"volume-type":"block","device":%q,"fstype":"ext4","options":["noatime"]}`, device)
	write := `mkdir -p "$1" && printf %s "$2" >"$1"/mountInfo.json` // the node's /run is its own
	if out, err := n.Run(n.t.Context(), "sh", "-c", write, "sh", told, info); err != nil {
		n.t.Fatalf("write mountInfo.json: %v: %s", err, out)
	}
	return volume
}

// TestNodeDevices: a container has a block device of the node, which no other container opens. It has the file system
// on another one too, which its driver has left to the VM. What the VM wrote is on both after the pod's end.
func TestNodeDevices(t *testing.T) {
	n := open(t, harness.Newest)
	raw, formatted := loopdevice.New(t, deviceSize), loopdevice.New(t, deviceSize)
	if err := os.WriteFile(raw, []byte("from the node"), 0); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("mkfs.ext4", "-q", formatted).CombinedOutput(); err != nil {
		t.Fatalf("mkfs: %v: %s", err, out)
	}
	mounts := []object{{"host_path": n.leave(formatted), "container_path": "/data"}}
	sandbox := n.sandbox("devices", nil)
	pod := n.crictl("runp", "--runtime", "godwit", sandbox)
	run := n.runner(pod, sandbox)
	db := run("db", "sleep 10000", object{"mounts": mounts, "devices": []object{
		{"host_path": raw, "container_path": "/dev/xvda", "permissions": "rwm"}}})
	other := run("other", "sleep 10000", object{"mounts": mounts})
	if out := n.crictl("exec", db, "head", "-c", "13", "/dev/xvda"); out != "from the node" {
		t.Errorf("the container reads %q", out)
	}
	n.crictl("exec", db, "sh", "-c", "printf 'from the VM' | dd of=/dev/xvda bs=4096 seek=8 conv=notrunc")
	numbers := strings.Fields(n.crictl("exec", db, "stat", "-c", "%t %T", "/dev/xvda"))
	steal := fmt.Sprintf("mknod /stolen b $((0x%s)) $((0x%s)) && head -c 13 /stolen", numbers[0], numbers[1])
	if out, err := n.try(t.Context(), "exec", other, "sh", "-c", steal); err == nil {
		t.Errorf("another container reads the device: %q", out)
	}
	if out := n.crictl("exec", db, "grep", "/data", "/proc/mounts"); !strings.Contains(out, "ext4") ||
		!strings.Contains(out, "noatime") {
		t.Errorf("the volume is mounted as %q", out)
	}
	n.crictl("exec", db, "sh", "-c", "echo shared > /data/file")
	if out := n.crictl("exec", other, "cat", "/data/file"); out != "shared" {
		t.Errorf("the other container reads %q", out)
	}
	n.crictl("stopp", pod)
	n.crictl("rmp", pod)
	n.holds(raw, formatted)
}

// holds looks for what the VM wrote to the devices.
func (n *node) holds(raw, formatted string) {
	t := n.t
	f, err := os.Open(raw)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	got := make([]byte, 11)
	if _, err := f.ReadAt(got, 8*4096); err != nil || string(got) != "from the VM" {
		t.Errorf("the device has %q after the pod's end: %v", got, err)
	}
	at := t.TempDir()
	if err := mount.All([]mount.Mount{{Type: "ext4", Source: formatted, Options: []string{"ro"}}}, at); err != nil {
		t.Fatal(err)
	}
	defer mount.UnmountAll(at, 0)
	if data, err := os.ReadFile(filepath.Join(at, "file")); err != nil || string(data) != "shared\n" {
		t.Errorf("the volume has %q after the pod's end: %v", data, err)
	}
	if out, err := exec.Command("dumpe2fs", "-h", formatted).CombinedOutput(); err != nil ||
		!strings.Contains(string(out), "state:         clean") {
		t.Errorf("the file system was not unmounted: %v: %s", err, out)
	}
}
