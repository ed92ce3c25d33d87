package bundle

import (
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/internal/loopdevice"
)

const loopSize = 8 << 20

// loop makes a block device of the node.
func loop(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	return loopdevice.New(t, loopSize)
}

// device is what CRI makes of a device of a container.
func device(t *testing.T, path, at, access string) oci.SpecOpts {
	t.Helper()
	var st unix.Stat_t
	must(t, unix.Stat(path, &st))
	major, minor := int64(unix.Major(st.Rdev)), int64(unix.Minor(st.Rdev))
	mode, uid, gid := os.FileMode(0o660), uint32(0), uint32(6)
	return edit(func(s *specs.Spec) {
		s.Linux.Devices = append(s.Linux.Devices, specs.LinuxDevice{Path: at, Type: "b", Major: major, Minor: minor,
			FileMode: &mode, UID: &uid, GID: &gid})
		s.Linux.Resources.Devices = append(s.Linux.Resources.Devices, specs.LinuxDeviceCgroup{Allow: true, Type: "b",
			Major: &major, Minor: &minor, Access: access})
	})
}

// TestBlockDevice: a device of volumeDevices is found on the node by its number, with what its rule allows.
func TestBlockDevice(t *testing.T) {
	path := loop(t)
	for access, readOnly := range map[string]bool{"rwm": false, "rw": false, "r": true, "mr": true} {
		b, err := load(t, member(t, device(t, path, "/dev/xvda", access)))
		must(t, err)
		m := b.Member
		if len(m.Devices) != 1 || len(m.Container.Devices) != 1 {
			t.Fatalf("%s: devices %+v, %+v", access, m.Devices, m.Container.Devices)
		}
		var st unix.Stat_t
		must(t, unix.Stat(path, &st))
		id := fmt.Sprintf("dev-%d-%d", unix.Major(st.Rdev), unix.Minor(st.Rdev))
		if want := (NodeDevice{ID: id, Path: path, Size: loopSize, ReadOnly: readOnly}); m.Devices[0] != want {
			t.Errorf("%s: %+v, want %+v", access, m.Devices[0], want)
		}
		if want := (spec.Device{Disk: id, Path: "/dev/xvda", Mode: 0o660, GID: 6}); m.Container.Devices[0] != want {
			t.Errorf("%s: %+v, want %+v", access, m.Container.Devices[0], want)
		}
		if len(m.Container.OCI.Linux.Devices) != 0 || len(m.Container.OCI.Linux.Resources.Devices) != 0 {
			t.Errorf("numbers of the node stay in the Spec: %+v", m.Container.OCI.Linux)
		}
	}
}

// TestBlockDeviceRefused: what is no device that a VM can have.
func TestBlockDeviceRefused(t *testing.T) {
	path := loop(t)
	missing := edit(func(s *specs.Spec) {
		s.Linux.Devices = append(s.Linux.Devices, specs.LinuxDevice{Path: "/dev/xvda", Type: "b", Major: 4000, Minor: 1})
	})
	kvm := edit(func(s *specs.Spec) {
		s.Linux.Devices = append(s.Linux.Devices, specs.LinuxDevice{Path: "/dev/kvm", Type: "c", Major: 10, Minor: 232})
	})
	for name, tt := range map[string]struct {
		opts []oci.SpecOpts
		is   func(error) bool
		says string
	}{
		"none":      {[]oci.SpecOpts{missing}, errdefs.IsNotFound, "/dev/xvda"},
		"no rule":   {[]oci.SpecOpts{device(t, path, "/dev/xvda", "m")}, errdefs.IsInvalidArgument, "permission r or rw"},
		"all of it": {[]oci.SpecOpts{device(t, path, path, "rwm"), missing, kvm}, errdefs.IsNotImplemented, "/dev/kvm"},
	} {
		if _, err := load(t, member(t, tt.opts...)); !tt.is(err) || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := load(t, generate(t, device(t, path, "/dev/xvda", "rwm"))); !errdefs.IsNotImplemented(err) {
		t.Errorf("in no pod: %v", err)
	}
}

// direct lets the test write what a CSI driver says of a volume.
func direct(t *testing.T) func(volume, text string) {
	t.Helper()
	before := directVolumes
	t.Cleanup(func() { directVolumes = before })
	directVolumes = t.TempDir()
	return func(volume, text string) {
		t.Helper()
		dir := filepath.Join(directVolumes, base64.URLEncoding.EncodeToString([]byte(volume)))
		must(t, os.MkdirAll(dir, 0o700))
		must(t, os.WriteFile(filepath.Join(dir, "mountInfo.json"), []byte(text), 0o600))
	}
}

// TestDirectVolume: a volume that its CSI driver has left to the VM is the file system on a device.
func TestDirectVolume(t *testing.T) {
	path, says := loop(t), direct(t)
	k := newKubelet(t)
	volume := filepath.Join(k.volume("kubernetes.io~csi", "pv", false), csiMount)
	must(t, os.Mkdir(volume, 0o755))
	for options, readOnly := range map[string]bool{`["noatime"]`: false, `["ro","discard"]`: true} {
		says(volume, fmt.Sprintf(`{"volume-type":"block","device":%q,"fstype":"ext4","options":%s}`, path, options))
		b, err := load(t, member(t, bind(volume, "/data", "rprivate", "rw")))
		must(t, err)
		v := b.Member.Volumes[0]
		if v.Kind != spec.VolumeMounted || v.Source != volume || v.Device == nil || v.Device.Path != path ||
			v.Device.ReadOnly != readOnly || v.Disk != v.Device.ID || v.Filesystem != "ext4" || len(v.Options) == 0 {
			t.Errorf("%s: %+v of %+v", options, v, v.Device)
		}
		if len(b.Copies) != 0 || b.Member.Container.Mounts[0].Target != "/data" {
			t.Errorf("%s: copies %+v, mounts %+v", options, b.Copies, b.Member.Container.Mounts)
		}
	}
	for text, want := range map[string]string{
		`{"volume-type":"block","device":"/dev/null","fstype":"ext4"}`:                     "not a block device",
		`{"volume-type":"block","device":"/nowhere","fstype":"ext4"}`:                      "device",
		`{"volume-type":"spdkvol","device":"/dev/null","fstype":"ext4"}`:                   "volume-type",
		`{"volume-type":"block","device":"/dev/null","fstype":"xfs"}`:                      "fstype",
		`{"volume-type":"block","device":"/dev/null","fstype":"ext4","options":["bind"]}`:  "bind",
		`{"volume-type":"block","device":"/dev/null","fstype":"ext4","options":["foo"]}`:   "foo",
		`{"volume-type":"block","device":"/d","fstype":"ext4","metadata":{"fsGroup":"1"}}`: "fsGroup",
		`{`: "mountInfo.json",
	} {
		says(volume, text)
		_, err := load(t, member(t, bind(volume, "/data", "rw"), annotation(Prefix+"volumes", "copy")))
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "mount /data") {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// TestDirectVolumeOfAnother: a path outside the pod's volumes names no device, whatever is said of it.
func TestDirectVolumeOfAnother(t *testing.T) {
	path, says := loop(t), direct(t)
	own := newKubelet(t).volume("kubernetes.io~csi", "pv", false)
	dir := filepath.Join(strings.Replace(own, podUID, "another", 1), csiMount)
	must(t, os.MkdirAll(dir, 0o755))
	says(dir, fmt.Sprintf(`{"volume-type":"block","device":%q,"fstype":"ext4"}`, path))
	b, err := load(t, member(t, bind(dir, "/data", "ro")))
	if err != nil || len(b.Member.Volumes) != 0 || len(b.Copies) != 1 {
		t.Errorf("another pod's volume: %+v, %v", b, err)
	}
}
