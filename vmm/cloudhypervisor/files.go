package cloudhypervisor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"godwit.dev/godwit/vmm"
	"godwit.dev/godwit/vmm/process"
)

// files are the descriptors that the VMM gets, and the names by which it opens some of
// them again.
type files struct {
	process.Files

	api    string // number
	events string
	work   string // path
	ram    string
	disks  []string
	shown  []shown // disks in hot slots
	// confined: the VMM will see none of the host's files.
	confined bool
	user     process.User

	firmware string // path

	console *os.File // becomes its standard output; nil: none
	null    *os.File
	log     *os.File
}

// openFiles listens on the API's socket and gathers what cfg names. On error nothing
// stays, the socket included.
func openFiles(cfg vmm.Config, allowRoot, confined bool) (_ *files, err error) {
	f := &files{confined: confined}
	// Who listens on the API's socket has the directory: another VM that has it is left
	// alone.
	if f.api, err = f.Listen(controlPath(cfg.Dir)); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close(), cleanUp(cfg.Dir, cfg.Agent, cfg.Serial))
		}
	}()
	if err := cleanRest(cfg.Dir, cfg.Agent, cfg.Serial); err != nil { // of one that was killed
		return nil, err
	}
	if err := f.openLogs(cfg); err != nil {
		return nil, err
	}
	if f.ram, err = f.path(cfg.RAM); err != nil {
		return nil, fmt.Errorf("pass RAM: %w", err)
	}
	if f.user, err = process.Owner(cfg.RAM, allowRoot); err != nil {
		return nil, err
	}
	for _, disk := range cfg.Disks {
		path, err := f.disk(disk)
		if err != nil {
			return nil, fmt.Errorf("pass disk %s: %w", disk.ID, err)
		}
		f.disks = append(f.disks, path)
	}
	if cfg.Firmware != nil {
		if f.firmware, err = f.own(cfg.Firmware, false); err != nil {
			return nil, fmt.Errorf("pass firmware: %w", err)
		}
	}
	payload, err := openPayload(cfg)
	if err != nil {
		return nil, err
	}
	defer func() {
		for _, file := range payload {
			file.Close()
		}
	}()
	return f, f.openWork(cfg, payload)
}

// disk answers the path by which the VMM opens a disk. One in a hot slot is shown to the VMM, not
// passed: its descriptor would stay in the VMM after the disk is removed.
func (f *files) disk(disk vmm.Disk) (string, error) {
	if !slots.Hot(disk.Slot) {
		return f.own(disk.File, !disk.ReadOnly)
	}
	s, err := show(f.user, disk, f.confined)
	if err != nil {
		return "", err
	}
	f.shown = append(f.shown, s)
	return s.path, nil
}

// own passes what the VMM opens again as its user, and answers the path of it.
func (f *files) own(file *os.File, write bool) (string, error) {
	private, err := f.user.Private(file, write)
	if err != nil {
		return "", err
	}
	if private != file {
		defer private.Close()
	}
	return f.path(private)
}

// openWork makes the VMM's own directory, with links to what it is to boot.
func (f *files) openWork(cfg vmm.Config, payload map[string]*os.File) error {
	work, err := makeWork(cfg.Dir, f.user)
	if err != nil {
		return err
	}
	defer work.Close()
	if f.work, err = f.path(work); err != nil {
		return fmt.Errorf("pass %s: %w", work.Name(), err)
	}
	for name, file := range payload {
		target, err := f.own(file, false)
		if err != nil {
			return fmt.Errorf("pass %s: %w", file.Name(), err)
		}
		if err := os.Symlink(target, filepath.Join(work.Name(), name)); err != nil {
			return fmt.Errorf("link %s: %w", name, err)
		}
	}
	return nil
}

func (f *files) openLogs(cfg vmm.Config) error {
	pipe, err := makeEvents(cfg.Dir)
	if err != nil {
		return err
	}
	defer pipe.Close()
	if f.events, err = f.Pass(pipe); err != nil {
		return fmt.Errorf("pass event monitor: %w", err)
	}
	if f.log, err = process.OpenLog(logPath(cfg.Dir)); err != nil {
		return fmt.Errorf("open log: %w: %w", errdefs.ErrInvalidArgument, err)
	}
	if f.console = cfg.Console; f.console != nil {
		return nil
	}
	if f.null, err = os.OpenFile(os.DevNull, os.O_WRONLY, 0); err != nil {
		return err
	}
	f.console = f.null
	return nil
}

// path passes file and returns the name under which the process opens it.
func (f *files) path(file *os.File) (string, error) {
	number, err := f.Pass(file)
	return "/proc/self/fd/" + number, err
}

// Close closes what is ours; it may be called again.
func (f *files) Close() error {
	err := f.Files.Close()
	for _, file := range []*os.File{f.null, f.log} {
		if file != nil {
			err = errors.Join(err, file.Close())
		}
	}
	f.null, f.log = nil, nil
	return err
}

// The VMM reads kernel and initramfs through links that are removed once it has booted:
// a reset of the guest, which it answers with a boot of its own, then finds no kernel
// and ends the process. Where a reset is to boot again they stay.
const (
	kernelLink = "boot.kernel"
	initrdLink = "boot.initrd"
)

func openPayload(cfg vmm.Config) (map[string]*os.File, error) {
	files := map[string]*os.File{}
	for name, path := range map[string]string{kernelLink: cfg.Kernel, initrdLink: cfg.Initrd} {
		if path == "" || cfg.Incoming && !cfg.Reboots {
			continue
		}
		file, err := os.Open(path)
		if err != nil {
			for _, other := range files {
				other.Close()
			}
			return nil, fmt.Errorf("%w: %w", errdefs.ErrNotFound, err)
		}
		files[name] = file
	}
	return files, nil
}

func removePayload(home string) error {
	return process.RemoveSockets(filepath.Join(home, kernelLink), filepath.Join(home, initrdLink))
}

// tap is a duplicate of a tap that the caller closes whenever it likes.
type tap struct {
	nic vmm.NIC
	fd  int
}

func holdTap(nic vmm.NIC) (tap, error) {
	fd, err := process.Control(nic.Tap, func(fd int) (int, error) {
		return unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	})
	if err != nil {
		return tap{}, fmt.Errorf("pass tap of NIC %s: %w: %w", nic.ID, errdefs.ErrInvalidArgument, err)
	}
	return tap{nic: nic, fd: fd}, nil
}

func (t tap) close() error {
	if err := unix.Close(t.fd); err != nil {
		return fmt.Errorf("close tap %s: %w", strconv.Itoa(t.fd), err)
	}
	return nil
}
