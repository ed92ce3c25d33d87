package tracking

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/snapshot/track"
	"godwit.dev/godwit/vmm"
)

// lazyKind is the key by which the result of the self-test is remembered.
const lazyKind = "RAM that comes while the VM runs"

// Lazy has VMs run while their RAM comes.
type Lazy struct{ Prober }

// Probe answers why this kernel cannot do it, by a process whose pages come as it asks for them.
func (l Lazy) Probe(ctx context.Context) error {
	reason := l.cached(ctx, lazyKind, func() error { return l.test(ctx) })
	if reason != "" {
		return fmt.Errorf("%s: %w", reason, errdefs.ErrNotImplemented)
	}
	return nil
}

// Expect is track.Expect.
func (Lazy) Expect(p vmm.Process, ram *os.File) error { return track.Expect(p.PID, p.Userfault, ram) }

// Whole is track.Whole.
func (Lazy) Whole(p vmm.Process, ram *os.File) error { return track.Whole(p.PID, p.Userfault, ram) }

// Open is what a track.Missing is made of. It fails with track.ErrRemapped if RAM is not waited for any more.
func (Lazy) Open(p vmm.Process, ram *os.File) (*os.File, []track.Region, error) {
	files, regions, err := track.Find(p.PID, p.Userfault, ram)
	if err != nil {
		return nil, nil, err
	}
	if err := track.CheckRegistered(files, regions); err != nil {
		files.Close()
		return nil, nil, err
	}
	return files.Fault, regions, files.Pagemap.Close()
}

// test has a process read and write pages that are brought meanwhile, and wants them to be right and
// its writes to be told.
func (l Lazy) test(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	c, err := startChild(ctx, l.Command, true, true)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.close(ctx)) }()
	if _, err := c.order(ctx, orderReady, 0); err != nil { // it has mapped the file
		return fmt.Errorf("ask child: %w", err)
	}
	p := vmm.Process{PID: c.proc.PID, Userfault: c.proc.Userfault}
	if err := l.Expect(p, c.ram); err != nil {
		return err
	}
	fault, regions, err := l.Open(p, c.ram)
	if err != nil {
		return err
	}
	defer fault.Close()
	m, err := track.NewMissing(regions, fault)
	if err != nil {
		return err
	}
	serving, stop := context.WithCancel(ctx)
	defer stop()
	failed := make(chan error, 1)
	go func() {
		page := make([]byte, pageSize)
		page[0] = 7
		failed <- m.Serve(serving, func(offset int64) {
			if err := m.Put(offset, page); err != nil {
				cancel()
			}
		})
	}()
	for page := range 8 {
		if got, err := c.order(ctx, orderRead, page); err != nil || got != 7 {
			return fmt.Errorf("page %d came as %d: %w", page, got, errors.Join(err, errdefs.ErrNotImplemented))
		}
	}
	if err := l.Whole(p, c.ram); err != nil {
		return err
	}
	stop()
	if err := <-failed; !errors.Is(err, context.Canceled) {
		return err
	}
	_, err = c.order(ctx, orderWrite, 20) // the child is asked nothing more
	return err
}
