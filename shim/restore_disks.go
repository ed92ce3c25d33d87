package shim

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/containerd/errdefs"
)

// fetchedDisks brings read-only disks from a worker into the node's cache. The worker has
// the end of a pipe and no file: this process writes and hashes what comes. A snapshot that
// took the worker over can change nothing of it later.
type fetchedDisks struct {
	disks Disks
	all   []*fetchedDisk
}

type fetchedDisk struct {
	size, left int64    // bytes of the disk, and of these what has not come
	from, to   *os.File // of the pipe; the worker gets to
	ended      bool     // the worker has said all that it had to say
	err        error
	done       chan struct{} // closed after the last write of ended and err
}

// fetch answers the end for the worker, and makes path a link to the disk when all of its size has
// come.
func (f *fetchedDisks) fetch(ctx context.Context, digest string, size int64, path string) (*os.File, error) {
	from, to, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("fetch a disk: %w", err)
	}
	d := &fetchedDisk{size: size, left: size, from: from, to: to, done: make(chan struct{})}
	f.all = append(f.all, d)
	go func() {
		defer close(d.done)
		d.err = f.disks.Keep(ctx, digest, d, path)
		d.err = errors.Join(d.err, from.Close()) // a worker that goes on hears of the error
	}()
	return to, nil
}

// Read notes the end, and refuses what goes beyond it: a worker could fill the host's disk.
func (d *fetchedDisk) Read(buf []byte) (int, error) {
	n, err := d.from.Read(buf[:min(int64(len(buf)), d.left+1)])
	if int64(n) > d.left {
		return int(d.left), fmt.Errorf("the worker sends more than the %d bytes that the disk has: %w", d.size,
			errdefs.ErrDataLoss)
	}
	d.left -= int64(n)
	d.ended = d.ended || errors.Is(err, io.EOF)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = fmt.Errorf("the worker has ended, and another process holds its end of the pipe: %w", errdefs.ErrInternal)
	}
	return n, err
}

// pipeBound is how long what a worker has written may take to be read after its end. It
// matters only where a process is left that holds the pipe.
var pipeBound = time.Minute

// wait returns when every disk is in the cache, or why not. failed is the worker's error.
func (f *fetchedDisks) wait(failed error) error {
	var errs []error
	for _, d := range f.all {
		_ = d.to.Close()
		_ = d.from.SetReadDeadline(time.Now().Add(pipeBound))
	}
	for _, d := range f.all {
		<-d.done
		// What did not come is the worker's error, and what could not be kept is its cause.
		if d.err != nil && (failed == nil || !d.ended) {
			errs = append(errs, d.err)
		}
	}
	if len(errs) > 0 {
		return fmt.Errorf("keep a disk of the snapshot: %w", errors.Join(errs...))
	}
	return failed
}
