package qemu

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/vmm/qemu/qmp"
)

// stateMagic is what a stream of QEMU's begins with: QEMU_VM_FILE_MAGIC of its migration/qemu-file.h.
const stateMagic = "QEVM"

// openIncoming has a VM that is Incoming read its state from a pipe. The pipe has the first
// bytes, which are the same in every state. So QEMU has begun with the state before a VM stands
// still for it, where it is started early. It also ends by itself if this process does.
// openIncoming answers where the rest is to be written.
func (m *Machine) openIncoming(ctx context.Context) (*os.File, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	if _, err = w.WriteString(stateMagic); err != nil {
		return nil, errors.Join(err, r.Close(), w.Close())
	}
	if err := m.runWithEnd(ctx, "migrate-incoming", r); err != nil {
		return nil, errors.Join(fmt.Errorf("await state: %w", err), w.Close())
	}
	return w, nil
}

// keepIncoming has openIncoming's answer wait for LoadState.
func (m *Machine) keepIncoming(ctx context.Context) error {
	w, err := m.openIncoming(ctx)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.incoming = w
	return nil
}

// warmAllocator has QEMU get the memory that a load takes, 8 MiB in small pieces, before a VM stands still
// for it: to make a description of all its commands takes more, and what is freed then stays with
// the process. Its allocator puts the pieces together when it is next asked for a large one, which
// takes 5 ms: the list of its commands is one.
func (m *Machine) warmAllocator(ctx context.Context) error {
	for _, command := range []string{"query-qmp-schema", "query-commands"} {
		err := m.execute(ctx, command, nil, nil)
		if refused := (*qmp.Error)(nil); err != nil && !errors.As(err, &refused) {
			return err
		}
	}
	return nil
}

// closeIncoming closes what is not written to any more.
func (m *Machine) closeIncoming() error {
	if w := m.takeIncoming(); w != nil {
		return w.Close()
	}
	return nil
}

// takeIncoming answers, once, where the state is to be written.
func (m *Machine) takeIncoming() *os.File {
	m.mu.Lock()
	defer m.mu.Unlock()
	w := m.incoming
	m.incoming = nil
	return w
}

// LoadState gives the VM, started as Incoming, its device state from the file's present offset
// on. It is paused afterwards.
func (m *Machine) LoadState(ctx context.Context, from *os.File) error {
	if err := m.loadState(ctx, from); err != nil {
		return fmt.Errorf("load state: %w", err)
	}
	return nil
}

func (m *Machine) loadState(ctx context.Context, from *os.File) error {
	ctx, cancel := bounded(ctx)
	defer cancel()
	magic := make([]byte, len(stateMagic))
	if _, err := io.ReadFull(from, magic); err != nil || string(magic) != stateMagic {
		return fmt.Errorf("%s holds no device state of QEMU: %w", from.Name(), errors.Join(errdefs.ErrInvalidArgument, err))
	}
	// RAM is mapped since the start, and touched only for the state.
	if m.mapped != nil {
		if err := m.mapped(ctx); err != nil {
			return err
		}
	}
	w := m.takeIncoming()
	if w == nil { // it was not started ahead
		if status, err := m.status(ctx); err != nil {
			return err
		} else if status != "inmigrate" {
			return fmt.Errorf("VM is %s, it was not started as incoming: %w", status, errdefs.ErrFailedPrecondition)
		}
		var err error
		if w, err = m.openIncoming(ctx); err != nil {
			return err
		}
	}
	told := m.transfers()
	defer told.Close()
	copied := make(chan error, 1)
	go func() {
		_, err := io.Copy(w, from)
		copied <- errors.Join(err, w.Close())
	}()
	err := m.transferred(ctx, told)
	w.SetWriteDeadline(time.Now()) // QEMU does not read what follows the state's end
	if copyErr := <-copied; err != nil {
		return fmt.Errorf("%w%s", errors.Join(err, copyErr), logTail(m.Process().Dir))
	}
	return m.awaitStatusChange(ctx, "inmigrate")
}
