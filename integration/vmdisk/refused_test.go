//go:build integration

package vmdisk

import (
	"os"
	"slices"
	"testing"

	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/integration/images"
	"godwit.dev/godwit/vmm/cloudhypervisor"
)

// refused is every image, and every wish, that cannot be a VM: it is refused by name, and
// nothing of it is left on the node, as the check at the end of the test says.
func (s *site) refused(t *testing.T) {
	disk := func(path string) []string { return []string{"--annotation", "godwit.dev/disk=" + path} }
	for name, tt := range map[string]struct {
		image string
		flags []string
		want  []string
	}{
		"several disks": {images.OddDisks, nil, []string{"carries 13 disks", "/disk/one.raw, ", "godwit.dev/disk"}},
		"no disk": {images.KernelDisk, disk("/disk/other.raw"),
			[]string{"/disk/other.raw of the image: there is no such file"}},
		"empty":            {images.OddDisks, disk("/disk/empty.raw"), []string{"it is empty"}},
		"directory":        {images.OddDisks, disk("/disk/directory.raw"), []string{"it is not a file"}},
		"pipe":             {images.OddDisks, disk("/disk/pipe.raw"), []string{"it is not a file"}},
		"link to the host": {images.OddDisks, disk("/disk/outside.raw"), []string{"/disk/outside.raw of the image"}},
		"link above":       {images.OddDisks, disk("/disk/above.raw"), []string{"/disk/above.raw of the image"}},
		"truncated": {images.OddDisks, disk("/disk/truncated.qcow2"),
			[]string{"/disk/truncated.qcow2", "qcow2: the compressed cluster"}},
		"no qcow2":         {images.OddDisks, disk("/disk/none.qcow2"), []string{"it is no qcow2 file"}},
		"backing file":     {images.OddDisks, disk("/disk/backing.qcow2"), []string{"backing file"}},
		"encrypted":        {images.OddDisks, disk("/disk/encrypted.qcow2"), []string{"encrypted"}},
		"data elsewhere":   {images.OddDisks, disk("/disk/external.qcow2"), []string{"external data file"}},
		"absurd size":      {images.OddDisks, disk("/disk/huge.qcow2"), []string{"a disk of 115292150"}},
		"too large a wish": {images.RawDisk, []string{"--annotation", "godwit.dev/disk-size=2TiB"}, []string{"vm.max_disk"}},
		"unknown system": {images.RawDisk, []string{"--annotation", "godwit.dev/os=solaris"},
			[]string{`"solaris" is not one of linux, windows`}},
		"mount": {images.RawDisk, []string{"--mount", "type=bind,src=/etc,dst=/data,options=rbind:ro"},
			[]string{"mount /data"}},
		"read-only": {images.RawDisk, []string{"--read-only"}, []string{"root.readonly"}},
		"kernel not there": {images.RawDisk, []string{"--annotation", "godwit.dev/kernel=/boot/vmlinuz"},
			[]string{"/boot/vmlinuz of the image"}},
		"windows by kernel": {images.RawDisk, []string{"--annotation", "godwit.dev/os=windows", "--annotation",
			"godwit.dev/kernel=/k"}, []string{"Windows is booted by firmware"}},
	} {
		// What is looked at first is refused first.
		if needsFirmware := !slices.Contains(byBundle, name); needsFirmware && noFirmware() {
			tt.want = []string{"vmm.cloud_hypervisor_firmware", "godwit.dev/kernel"}
		}
		t.Run(name, func(t *testing.T) { fails(t, s.a, tt.want, append(tt.flags, tt.image, "refused")...) })
	}
	if harness.VMM() == cloudhypervisor.Name {
		fails(t, s.a, []string{"Cloud Hypervisor has no BIOS", "use uefi or QEMU"}, "--annotation",
			"godwit.dev/firmware=bios", images.BIOSDisk, "refused")
	}
}

// byBundle are those that are refused before the node is asked for firmware, or want none.
var byBundle = []string{"unknown system", "mount", "read-only", "kernel not there", "windows by kernel"}

// noFirmware tells whether the nodes have none for their VMM.
func noFirmware() bool {
	return harness.VMM() == cloudhypervisor.Name && os.Getenv("GODWIT_CLOUDHV_FIRMWARE") == ""
}
