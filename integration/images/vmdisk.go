package images

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// Names of the images that carry a VM disk, all with the same system on it.
const (
	RawDisk  = "godwit.test/rawdisk:1"  // /disk/system.raw, booted by UEFI
	QcowDisk = "godwit.test/qcowdisk:1" // the same, compressed
	// the same disk, and in addition a kernel (/boot/vmlinuz, and as an ELF file /boot/vmlinux) and /boot/initrd
	KernelDisk = "godwit.test/kerneldisk:1"
	BIOSDisk   = "godwit.test/biosdisk:1" // /disk/system.raw, which a BIOS starts; it writes BIOSGreeting
	OddDisks   = "godwit.test/odddisks:1" // what cannot be booted, one file for each reason
)

//go:embed system.sh
var system []byte

//go:embed dhcp.sh
var dhcp []byte

// Where things lie on the disk, in MiB.
const (
	espStart, espSize   = 1, 40
	dataStart, dataSize = 41, 16
	diskSize            = 58
)

// modules of the system, each after what it needs.
var systemModules = strings.Fields("drivers/virtio/virtio_ring drivers/virtio/virtio " +
	"drivers/virtio/virtio_pci_modern_dev drivers/virtio/virtio_pci_legacy_dev " +
	"drivers/virtio/virtio_pci drivers/block/virtio_blk net/core/failover drivers/net/net_failover " +
	"drivers/net/virtio_net drivers/input/evdev drivers/acpi/button")

// disks is what the images are made of.
type disks struct {
	dir            string
	cmdline        string // of the kernel that UEFI boots
	raw, qcow      []byte
	kernel, initrd []byte
	elf            []byte // the same kernel, unpacked
}

// vmDisks answers the images that carry a disk.
func vmDisks(ctx context.Context, debs, guest, dir, cmdline string) ([]Image, error) {
	d := &disks{dir: dir, cmdline: cmdline}
	for _, step := range []struct {
		name string
		do   func(context.Context) error
	}{
		{"kernel", func(ctx context.Context) error { return d.makeKernel(ctx, debs, guest) }},
		{"initramfs", func(ctx context.Context) error { return d.makeInitrd(ctx, guest) }},
		{"disk", d.makeDisk},
	} {
		if err := step.do(ctx); err != nil {
			return nil, fmt.Errorf("make VM disk: %s: %w", step.name, err)
		}
	}
	dirs := []File{{Name: "disk", Mode: fs.ModeDir | 0o755}}
	image := func(name string, files ...File) Image {
		return Image{Name: name, Layers: [][]File{append(dirs[:1:1], files...)}, Config: v1.Config{}}
	}
	raw := File{Name: "disk/system.raw", Mode: 0o440, UID: 107, GID: 107, Data: d.raw}
	return []Image{
		image(RawDisk, raw),
		image(QcowDisk, File{Name: "disk/system.qcow2", Mode: 0o440, Data: d.qcow}),
		image(KernelDisk, raw, File{Name: "boot", Mode: fs.ModeDir | 0o755},
			File{Name: "boot/vmlinuz", Mode: 0o444, Data: d.kernel}, File{Name: "boot/vmlinux", Mode: 0o444, Data: d.elf},
			File{Name: "boot/initrd", Mode: 0o444, Data: d.initrd}),
		image(BIOSDisk, File{Name: "disk/system.raw", Mode: 0o440, Data: biosDisk()}),
		image(OddDisks, odd(d.qcow)...),
	}, nil
}

// BIOSGreeting is the line that the system of BIOSDisk writes on the serial port.
const BIOSGreeting = "system: started by a BIOS"

// biosDisk is a disk whose first sector is a program: it writes the greeting on COM1, one
// byte after the other, and halts.
func biosDisk() []byte {
	disk := make([]byte, 1<<20)
	n := copy(disk, []byte{
		0x31, 0xc0, 0x8e, 0xd8, // xor ax, ax; mov ds, ax
		0xfc, 0xba, 0xf8, 0x03, // cld; mov dx, 0x3f8
		0xbe, 0x16, 0x7c, // mov si, 0x7c16
		0xac, 0x84, 0xc0, 0x74, 0x03, 0xee, 0xeb, 0xf8, // next: lodsb; test al, al; jz end; out dx, al; jmp next
		0xf4, 0xeb, 0xfd, // end: hlt; jmp end
	})
	copy(disk[n:], BIOSGreeting+"\r\n")
	disk[510], disk[511] = 0x55, 0xaa
	return disk
}

// odd are files that no VM boots from.
func odd(qcow []byte) []File {
	change := func(at int, to ...byte) []byte {
		out := append([]byte(nil), qcow[:min(len(qcow), 1<<20)]...)
		copy(out[at:], to)
		return out
	}
	return []File{
		{Name: "disk/one.raw", Mode: 0o444, Data: make([]byte, 4096)},
		{Name: "disk/two.raw", Mode: 0o444, Data: make([]byte, 4096)},
		{Name: "disk/empty.raw", Mode: 0o444},
		{Name: "disk/directory.raw", Mode: fs.ModeDir | 0o755},
		{Name: "disk/pipe.raw", Mode: fs.ModeNamedPipe | 0o644},
		{Name: "disk/outside.raw", Mode: fs.ModeSymlink | 0o777, Target: "/etc/passwd"},
		{Name: "disk/above.raw", Mode: fs.ModeSymlink | 0o777, Target: "../../../../../../../../etc/passwd"},
		{Name: "disk/truncated.qcow2", Mode: 0o444, Data: qcow[:len(qcow)/2]},
		{Name: "disk/none.qcow2", Mode: 0o444, Data: []byte("no image")},
		{Name: "disk/backing.qcow2", Mode: 0o444, Data: change(8, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 11)},
		{Name: "disk/encrypted.qcow2", Mode: 0o444, Data: change(32, 0, 0, 0, 1)},
		{Name: "disk/external.qcow2", Mode: 0o444, Data: change(72, 0, 0, 0, 0, 0, 0, 0, 4)},
		{Name: "disk/huge.qcow2", Mode: 0o444, Data: change(24, 0x10)},
	}
}

func run(ctx context.Context, name string, args ...string) error {
	out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, out)
	}
	return nil
}

// WriteDisk makes one tar file of an image that carries the disk in a file, of any size.
func WriteDisk(name, disk, path string) error {
	return Write(path, Image{Name: name, Layers: [][]File{{
		{Name: "disk", Mode: fs.ModeDir | 0o755},
		{Name: "disk/" + filepath.Base(disk), Mode: 0o444, From: disk},
	}}})
}

// WriteVMDisks makes one tar file of the images that carry a disk. debs keeps Debian's
// packages, guest is bin/guest, whose modules fit the kernel; more is for the command line
// of the kernel that UEFI boots.
func WriteVMDisks(ctx context.Context, debs, guest, more, path string) (err error) {
	dir, err := os.MkdirTemp("", "vmdisks")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	all, err := vmDisks(ctx, debs, guest, dir, strings.TrimSpace(SystemCmdline+" "+more))
	if err != nil {
		return err
	}
	return Write(path, all...)
}

// makeKernel takes the kernel whose modules are in guest, as Debian ships it: an EFI
// program that other loaders take too.
func (d *disks) makeKernel(ctx context.Context, debs, guest string) error {
	text, err := os.ReadFile(filepath.Join(guest, "version"))
	if err != nil {
		return err
	}
	_, rest, _ := strings.Cut(string(text), "\npackage ")
	name, _, ok := strings.Cut(rest, " ")
	if !ok {
		return errors.New(guest + "/version names no package")
	}
	files, err := packages(debs).layer(ctx, name)
	if err != nil {
		return err
	}
	for _, f := range files {
		if strings.HasPrefix(f.Name, "boot/vmlinuz-") {
			d.kernel = f.Data
		}
	}
	if d.kernel == nil {
		return errors.New("package " + name + " holds no kernel")
	}
	if d.elf, err = os.ReadFile(filepath.Join(guest, "vmlinuz")); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(d.dir, "vmlinuz"), d.kernel, 0o600)
}

func (d *disks) makeInitrd(ctx context.Context, guest string) (err error) {
	root := filepath.Join(d.dir, "root")
	if err := os.MkdirAll(filepath.Join(root, "modules"), 0o755); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(root, "bin"), 0o755); err != nil {
		return err
	}
	copies := map[string]string{busyboxPath: "bin/busybox"}
	var list []string
	for _, m := range systemModules {
		name := filepath.Base(m) + ".ko"
		copies[filepath.Join(guest, "modules", "kernel", m+".ko")] = filepath.Join("modules", name)
		list = append(list, name)
	}
	for from, to := range copies {
		data, err := os.ReadFile(from)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(root, to), data, 0o755); err != nil {
			return err
		}
	}
	for name, data := range map[string][]byte{"init": system, "bin/dhcp": dhcp, "bin/lease": dhcp, "bin/net": dhcp,
		"modules/list": []byte(strings.Join(list, "\n"))} {
		if err := os.WriteFile(filepath.Join(root, name), data, 0o755); err != nil {
			return err
		}
	}
	initrd := filepath.Join(d.dir, "initrd")
	if err := run(ctx, "sh", "-c", "cd '"+root+"' && find . | cpio --quiet -o -H newc | gzip -1 >'"+initrd+
		"'"); err != nil {
		return err
	}
	d.initrd, err = os.ReadFile(initrd)
	return err
}

// SystemCmdline is what the system's kernel is told.
const SystemCmdline = "console=ttyS0 quiet panic=-1"

// stub is the EFI program that starts the kernel with an initramfs and a command line
// that are sections of it.
const stub = "/usr/lib/systemd/boot/efi/linuxx64.efi.stub"

// makeDisk partitions a file: an EFI system partition with one program on it, where every
// firmware looks, and a file system. Nothing of it needs a loop device.
func (d *disks) makeDisk(ctx context.Context) (err error) {
	file := func(name string) string { return filepath.Join(d.dir, name) }
	if err := os.WriteFile(file("cmdline"), []byte(d.cmdline), 0o600); err != nil {
		return err
	}
	if err := os.WriteFile(file("raw"), nil, 0o600); err != nil {
		return err
	}
	if err := os.Truncate(file("raw"), diskSize<<20); err != nil {
		return err
	}
	esp := fmt.Sprintf("%s@@%dM", file("raw"), espStart)
	for _, c := range [][]string{
		{"objcopy", "--add-section", ".cmdline=" + file("cmdline"), "--change-section-vma", ".cmdline=0x30000",
			"--add-section", ".linux=" + file("vmlinuz"), "--change-section-vma", ".linux=0x2000000",
			"--add-section", ".initrd=" + file("initrd"), "--change-section-vma", ".initrd=0x4000000", stub, file("system.efi")},
		{"sgdisk", "-n", fmt.Sprintf("1:%dM:+%dM", espStart, espSize), "-t", "1:ef00",
			"-n", fmt.Sprintf("2:%dM:+%dM", dataStart, dataSize), "-t", "2:8300", file("raw")},
		{"mkfs.fat", "-F", "32", "-S", "512", "--offset", fmt.Sprint(espStart << 11), file("raw"), fmt.Sprint(espSize << 10)},
		{"mmd", "-i", esp, "::EFI", "::EFI/BOOT"},
		{"mcopy", "-i", esp, file("system.efi"), "::EFI/BOOT/BOOTX64.EFI"},
		{"mke2fs", "-q", "-t", "ext4", "-E", fmt.Sprintf("offset=%d", dataStart<<20), file("raw"),
			fmt.Sprintf("%dM", dataSize)},
		{"qemu-img", "convert", "-c", "-O", "qcow2", file("raw"), file("qcow")},
	} {
		if err := run(ctx, c[0], c[1:]...); err != nil {
			return err
		}
	}
	if d.raw, err = os.ReadFile(file("raw")); err != nil {
		return err
	}
	d.qcow, err = os.ReadFile(file("qcow"))
	return err
}
