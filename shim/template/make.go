package template

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/vmm"
)

// cleanup bounds what follows a failure.
const cleanup = 10 * time.Second

// Maker boots VMs to make templates of them.
type Maker struct {
	Store  Store
	Driver vmm.Driver
	// Dir is private and empty, and in memory: the VMM's sockets and the RAM lie in it.
	Dir string
	// User is whom the VMM runs as; 0: as root.
	User int
	// Kernel and Initrd are what the shape's digest is of.
	Kernel, Initrd string
	// Prepare waits for the agent, tells it that it will be copied, lets go of it, and
	// answers the release of the guest's kernel.
	Prepare func(ctx context.Context, m vmm.Machine, console string) (string, error)
	// Tap answers a NIC's other end, which belongs to no network.
	Tap func(name string) (*os.File, error)
	// MaxBytes is the longest RAM file that is kept.
	MaxBytes uint64
	// Quiet is how long a guest that has answered is left alone: what it does meanwhile no
	// copy has to do. 0: quietDefault.
	Quiet time.Duration
}

// Lock keeps others from making and sweeping until the file is closed. Unavailable while
// another does.
func (s Store) Lock() (*os.File, error) { return s.cache().Lock() }

// Make makes the template of a shape. One that cannot be made is refused for a while. The
// caller has the lock.
func (m *Maker) Make(ctx context.Context, shape Shape) error {
	key := shape.Key()
	err := m.Store.cache().Add(key, func(dir string) error { return m.fill(ctx, dir, shape) })
	if err == nil {
		return errors.Join(m.Store.forget(key), m.Store.admit(key))
	}
	err = fmt.Errorf("make template %s: %w", key, err)
	if ctx.Err() != nil {
		return err // that it was interrupted says nothing about the shape: it is asked for still
	}
	return errors.Join(err, m.Store.refuse(key, err), m.Store.forget(key))
}

// fill makes the files of a template.
func (m *Maker) fill(ctx context.Context, work string, shape Shape) (err error) {
	ram, err := m.makeRAM(int64(shape.Memory))
	if err != nil {
		return fmt.Errorf("make RAM: %w", err)
	}
	defer func() { err = errors.Join(err, ram.Close(), os.Remove(ram.Name())) }()
	if os.Geteuid() == 0 {
		if err := ram.Chown(m.User, -1); err != nil {
			return fmt.Errorf("give RAM to user %d: %w", m.User, err)
		}
	}
	h := &head{Shape: shape, Made: time.Now().UTC()}
	err = m.run(ctx, shape, ram, func(vm vmm.Machine, kernel string) (err error) {
		h.Kernel = kernel
		var state []byte
		err = write(filepath.Join(work, stateFile), func(f *os.File) error {
			if err := vm.SaveState(ctx, f); err != nil {
				return err
			}
			state, err = os.ReadFile(f.Name())
			return err
		})
		sum := sha256.Sum256(state)
		h.State = hex.EncodeToString(sum[:])
		return errors.Join(err, addressed(state, shape.NICs))
	})
	if err != nil {
		return err
	}
	err = write(filepath.Join(work, ramFile), func(f *os.File) (err error) {
		h.RAM, err = pack(ctx, f, ram, shape.Memory)
		return err
	})
	if err != nil {
		return err
	}
	if n := h.RAM.bytes(); n > m.MaxBytes {
		return fmt.Errorf("its RAM has %d bytes, %d at most (template.boot.max_size): %w", n, m.MaxBytes,
			errdefs.ErrResourceExhausted)
	}
	return write(filepath.Join(work, headFile), h.writeTo)
}

// makeRAM makes the file of a template's RAM. It is not of the pool, so no admission counts it. A memfd would not do:
// landlock has no rules for it, and Cloud Hypervisor writes RAM without a name to the device state.
func (m *Maker) makeRAM(size int64) (*os.File, error) {
	f, err := os.Create(filepath.Join(m.Dir, "ram"))
	if err != nil {
		return nil, err
	}
	if err := f.Truncate(size); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func (h *head) writeTo(f *os.File) error {
	line, err := json.Marshal(h)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(line)
	_, err = fmt.Fprintf(f, "%s\n%s\n", line, hex.EncodeToString(sum[:]))
	return err
}

// write makes a file that the disk has when it returns.
func write(path string, fill func(*os.File) error) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	err = fill(f)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}
