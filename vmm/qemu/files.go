package qemu

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"godwit.dev/godwit/vmm"
	"godwit.dev/godwit/vmm/process"
)

// files are the descriptors that QEMU gets, and how its command line names them.
// Everything else of ours is close-on-exec.
type files struct {
	process.Files

	ram     string
	kernel  string
	initrd  string
	user    process.User
	qmp     string
	agent   string
	console string
	serial  string
	flash   []string // firmware and its variables
	disks   []blockSource
	taps    []string
	sets    []string // -add-fd arguments
}

type blockSource struct{ driver, path string }

// openFiles listens on the sockets and gathers what cfg names. On error nothing stays,
// the sockets included.
func openFiles(cfg vmm.Config, control string, allowRoot bool) (_ *files, err error) {
	f := new(files)
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close())
		}
	}()
	ram, err := f.Pass(cfg.RAM)
	if err != nil {
		return nil, fmt.Errorf("pass RAM: %w", err)
	}
	f.ram = "/proc/self/fd/" + ram
	if f.user, err = process.Owner(cfg.RAM, allowRoot); err != nil {
		return nil, err
	}
	if err := f.boot(cfg); err != nil {
		return nil, err
	}
	if f.qmp, err = f.Listen(control); err != nil {
		return nil, err
	}
	if f.agent, err = f.Listen(cfg.Agent); err != nil {
		return nil, errors.Join(err, process.RemoveSockets(control))
	}
	if cfg.Serial != "" {
		if f.serial, err = f.Listen(cfg.Serial); err != nil {
			return nil, errors.Join(err, process.RemoveSockets(control, cfg.Agent))
		}
	}
	if err = f.devices(cfg); err != nil {
		return nil, errors.Join(err, process.RemoveSockets(sockets(control, cfg.Agent, cfg.Serial)...))
	}
	return f, nil
}

// sockets are those that a VM has.
func sockets(control, agent, serial string) []string {
	all := []string{control, agent}
	if serial != "" {
		all = append(all, serial)
	}
	return all
}

// boot passes kernel and initramfs, which QEMU opens again by itself, as its user.
func (f *files) boot(cfg vmm.Config) (err error) {
	for _, one := range []struct {
		from string
		name *string
	}{{cfg.Kernel, &f.kernel}, {cfg.Initrd, &f.initrd}} {
		if one.from == "" || cfg.Incoming && !cfg.Reboots {
			continue
		}
		if *one.name, err = f.own(one.from); err != nil {
			return err
		}
	}
	return nil
}

// own passes what QEMU reads as its user, and answers the path under which it opens it.
func (f *files) own(path string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("%w: %w", errdefs.ErrNotFound, err)
	}
	defer file.Close()
	private, err := f.user.Private(file, false)
	if err != nil {
		return "", err
	}
	if private != file {
		defer private.Close()
	}
	number, err := f.Pass(private)
	if err != nil {
		return "", fmt.Errorf("pass %s: %w", path, err)
	}
	return "/proc/self/fd/" + number, nil
}

func (f *files) devices(cfg vmm.Config) error {
	if cfg.Console != nil {
		set, err := f.set(cfg.Console, unix.O_WRONLY)
		if err != nil {
			return fmt.Errorf("pass console: %w", err)
		}
		f.console = set
	}
	if err := f.firmware(cfg); err != nil {
		return err
	}
	for _, disk := range cfg.Disks {
		source, err := f.disk(disk)
		if err != nil {
			return fmt.Errorf("pass disk %s: %w", disk.ID, err)
		}
		f.disks = append(f.disks, source)
	}
	for _, nic := range cfg.NICs {
		tap, err := f.Pass(nic.Tap)
		if err != nil {
			return fmt.Errorf("pass tap of NIC %s: %w", nic.ID, err)
		}
		f.taps = append(f.taps, tap)
	}
	return nil
}

func (f *files) firmware(cfg vmm.Config) error {
	for _, flash := range []struct {
		file *os.File
		mode int
	}{{cfg.Firmware, unix.O_RDONLY}, {cfg.NVRAM, unix.O_RDWR}} {
		if flash.file == nil {
			continue
		}
		path, err := f.set(flash.file, flash.mode)
		if err != nil {
			return fmt.Errorf("pass firmware: %w", err)
		}
		f.flash = append(f.flash, path)
	}
	return nil
}

// set passes file as a set of one, which QEMU opens by name as often as it likes.
func (f *files) set(file *os.File, mode int) (string, error) {
	file, err := withMode(file, mode)
	if err != nil {
		return "", err
	}
	defer file.Close()
	fd, err := f.Pass(file)
	if err != nil {
		return "", err
	}
	f.sets = append(f.sets, "-add-fd", opt("", "fd", fd, "set", fd))
	return "/dev/fdset/" + fd, nil
}

// withMode gives a descriptor of exactly that access mode: QEMU takes no other from a set. The
// caller closes it.
func withMode(file *os.File, mode int) (*os.File, error) {
	flags, err := process.Control(file, func(fd int) (int, error) { return unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0) })
	if err != nil {
		return nil, fmt.Errorf("read flags: %w: %w", errdefs.ErrInvalidArgument, err)
	}
	if flags&unix.O_ACCMODE == mode {
		return process.Dup(file)
	}
	if flags&unix.O_ACCMODE != unix.O_RDWR {
		return nil, fmt.Errorf("access mode %d, need %d: %w", flags&unix.O_ACCMODE, mode, errdefs.ErrInvalidArgument)
	}
	again, err := process.Control(file, func(fd int) (*os.File, error) {
		return os.OpenFile("/proc/self/fd/"+strconv.Itoa(fd), mode|flags&unix.O_APPEND, 0)
	})
	if err != nil {
		return nil, fmt.Errorf("open again: %w: %w", errdefs.ErrInvalidArgument, err)
	}
	return again, nil
}

func (f *files) disk(disk vmm.Disk) (blockSource, error) {
	driver, mode, err := access(disk)
	if err != nil {
		return blockSource{}, err
	}
	path, err := f.set(disk.File, mode)
	if err == nil && slots.Hot(disk.Slot) {
		// By this name the set is found when the disk is removed.
		f.sets[len(f.sets)-1] += ",opaque=" + escape(hotID(disk.ID))
	}
	return blockSource{driver, path}, err
}

// access is QEMU's driver for a disk, and the access mode that the driver needs of the file.
func access(disk vmm.Disk) (driver string, mode int, err error) {
	info, err := disk.File.Stat()
	if err != nil {
		return "", 0, fmt.Errorf("%w: %w", errdefs.ErrInvalidArgument, err)
	}
	driver, mode = "file", unix.O_RDWR
	if info.Mode()&os.ModeDevice != 0 {
		driver = "host_device"
	}
	if disk.ReadOnly {
		mode = unix.O_RDONLY
	}
	return driver, mode, nil
}
