package vmmtest

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"godwit.dev/godwit/vmm"
)

// mac of the guest's NIC.
const mac = "52:54:00:67:6f:64"

// bench is the workplace of one clause.
type bench struct {
	env Env
	dir string
	vms []*vm
}

// vm is a VM and what belongs to it.
type vm struct {
	vmm.Machine
	cfg   vmm.Config
	disk  string
	guest *guest
	ns    *os.File // network namespace; nil: the caller's
	files []io.Closer
}

func newBench(env Env) (*bench, error) {
	dir, err := os.MkdirTemp(env.Dir, "vm")
	if err != nil {
		return nil, err
	}
	return &bench{env: env, dir: dir}, nil
}

// onBench does something with VMs of env, which are gone when it returns. An error has what they said.
func onBench(ctx context.Context, env Env, do func(context.Context, *bench) error) (err error) {
	ctx, cancel := context.WithTimeout(ctx, env.Limit)
	defer cancel()
	b, err := newBench(env)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	err = do(ctx, b)
	if err == nil {
		err = b.confined()
	}
	if err != nil {
		return fmt.Errorf("%w%s", err, b.output())
	}
	return nil
}

// confined looks at each VMM that is left, after all that it was asked to do.
func (b *bench) confined() error {
	if b.env.Filtered == nil {
		return nil
	}
	var errs []error
	for _, v := range b.vms {
		if v.Machine == nil {
			continue
		}
		pid := v.Process().PID
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if _, rest, _ := strings.Cut(string(stat), ") "); errors.Is(err, os.ErrNotExist) || strings.HasPrefix(rest, "Z") {
			continue // the clause has ended it
		}
		if err == nil {
			err = confined(pid, b.env.User, func(thread string) bool { return b.env.Filtered(pid, thread) },
				room{network: len(v.cfg.NICs) > 0 || v.cfg.Incoming, hot: v.cfg.HotDisks})
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s is not confined: %w", v.cfg.Name, err))
		}
	}
	return errors.Join(errs...)
}

// close ends every VM.
func (b *bench) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	var errs []error
	for _, v := range b.vms {
		if v.Machine != nil {
			errs = append(errs, v.Kill(ctx))
		}
		for _, f := range v.files {
			f.Close()
		}
		<-v.guest.ended
	}
	for _, v := range b.vms {
		if b.env.Huge != "" && v.cfg.RAM != nil {
			errs = append(errs, os.Remove(v.cfg.RAM.Name()))
		}
	}
	return errors.Join(append(errs, os.RemoveAll(b.dir))...)
}

// output is the end of what the guests said.
func (b *bench) output() string {
	var s strings.Builder
	for _, v := range b.vms {
		fmt.Fprintf(&s, "\n%s said: %q", v.cfg.Name, v.guest.tail())
	}
	return s.String()
}

// config makes what a VM needs, with one disk and no NIC.
func (b *bench) config() (v *vm, err error) {
	v = &vm{guest: newGuest()}
	b.vms = append(b.vms, v)
	name := fmt.Sprintf("vm%d", len(b.vms))
	dir := filepath.Join(b.dir, name)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, v.abandon(err)
	}
	v.disk = filepath.Join(dir, "disk")
	v.cfg = vmm.Config{
		Name: name, Dir: dir, Memory: b.env.Memory, VCPUs: b.env.VCPUs, CPU: b.env.CPU,
		Kernel: b.env.Kernel, Initrd: b.env.Initrd, Cmdline: "console=ttyS0 quiet " + b.env.Cmdline,
		Agent: filepath.Join(dir, "agent.sock"),
	}
	disk, err := v.file("disk", 1<<20)
	if err != nil {
		return nil, v.abandon(err)
	}
	v.cfg.Disks = []vmm.Disk{{ID: "rw", Serial: "suite", Slot: b.env.DiskSlot, File: disk}}
	if v.cfg.RAM, err = b.ram(v, name); err != nil {
		return nil, v.abandon(err)
	}
	if b.env.User != 0 {
		if err := v.cfg.RAM.Chown(b.env.User, -1); err != nil {
			return nil, v.abandon(err)
		}
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, v.abandon(err)
	}
	v.cfg.Console = w
	v.files = append(v.files, w, r)
	go v.guest.listen(r)
	return v, nil
}

// ram makes the file of RAM.
func (b *bench) ram(v *vm, name string) (*os.File, error) {
	if b.env.Huge == "" {
		return v.file("ram", int64(b.env.Memory))
	}
	f, err := os.Create(filepath.Join(b.env.Huge, filepath.Base(b.dir)+name))
	if err != nil {
		return nil, err
	}
	v.files = append(v.files, f)
	return f, f.Truncate(int64(b.env.Memory))
}

// abandon is for a config that was not finished: no test listens to its guest.
func (v *vm) abandon(err error) error {
	close(v.guest.ended)
	return err
}

func (v *vm) file(name string, size int64) (*os.File, error) {
	f, err := os.Create(filepath.Join(v.cfg.Dir, name))
	if err != nil {
		return nil, err
	}
	v.files = append(v.files, f)
	return f, f.Truncate(size)
}

func (v *vm) addNIC(b *bench) (vmm.NIC, error) {
	tap, err := b.env.Tap(v.ns)
	if err != nil {
		return vmm.NIC{}, err
	}
	v.files = append(v.files, tap)
	return vmm.NIC{ID: "net0", Slot: b.env.NICSlot, MAC: mac, MTU: 1400, Tap: tap}, nil
}

// start makes a VM that does not run yet; change may alter its config.
func (b *bench) start(ctx context.Context, change func(*vm) error) (*vm, error) {
	return b.startWith(ctx, b.env.Driver, change)
}

func (b *bench) startWith(ctx context.Context, driver vmm.Driver, change func(*vm) error) (*vm, error) {
	v, err := b.config()
	if err != nil {
		return nil, err
	}
	if change != nil {
		if err := change(v); err != nil {
			return nil, err
		}
	}
	m, err := driver.Start(ctx, v.cfg)
	if err != nil {
		return nil, err
	}
	v.Machine = m
	return v, nil
}

// boot starts a VM and waits for its guest's first line.
func (b *bench) boot(ctx context.Context, change func(*vm) error) (*vm, error) {
	v, err := b.start(ctx, change)
	if err != nil {
		return nil, err
	}
	if err := v.Resume(ctx); err != nil {
		return nil, err
	}
	_, err = v.guest.await(ctx, func(tick) bool { return true })
	return v, err
}

// still tells whether the guest keeps silent and its RAM as it is.
func (b *bench) still(ctx context.Context, v *vm) error {
	// What it wrote before may be on its way: that ends, a running guest does not.
	for {
		before := v.guest.last()
		select {
		case <-time.After(b.env.Still):
		case <-ctx.Done():
			return fmt.Errorf("guest goes on: %w", ctx.Err())
		}
		if v.guest.last() == before {
			break
		}
	}
	before, err := v.ramHash()
	if err != nil {
		return err
	}
	time.Sleep(b.env.Still)
	after, err := v.ramHash()
	if err != nil {
		return err
	}
	if before != after {
		return errors.New("RAM changes though the VM does not run")
	}
	return nil
}

func (v *vm) ramHash() (sum [sha256.Size]byte, err error) {
	h := sha256.New()
	err = extents(v.cfg.RAM, func(off, length int64) error {
		fmt.Fprintln(h, off, length)
		_, err := io.Copy(h, io.NewSectionReader(v.cfg.RAM, off, length))
		return err
	})
	return [sha256.Size]byte(h.Sum(nil)), err
}

// extents calls do for each part of the file that is no hole. RAM is far larger than what
// a guest has touched of it.
func extents(f *os.File, do func(off, length int64) error) error {
	for end := int64(0); ; {
		begin, err := f.Seek(end, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return nil
		}
		if err != nil {
			return err
		}
		if end, err = f.Seek(begin, unix.SEEK_HOLE); err != nil {
			return err
		}
		if err := do(begin, end-begin); err != nil {
			return err
		}
	}
}
