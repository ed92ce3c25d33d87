package bundle

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"path"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	agentv1 "godwit.dev/godwit/api/agent/v1"
)

var errStop = errors.New("stop")

// Requests reads the sources and yields messages for the agent's Copy, to be sent in
// this order. It ends with the first error. A file with several names below one source is sent once.
func (cs Copies) Requests(ctx context.Context) iter.Seq2[*agentv1.CopyRequest, error] {
	return cs.requests(ctx, true)
}

// RequestsInFull is Requests for a guest that knows no hard links: each name is a file of its own.
func (cs Copies) RequestsInFull(ctx context.Context) iter.Seq2[*agentv1.CopyRequest, error] {
	return cs.requests(ctx, false)
}

func (cs Copies) requests(ctx context.Context, links bool) iter.Seq2[*agentv1.CopyRequest, error] {
	return func(yield func(*agentv1.CopyRequest, error) bool) {
		b := batch{yield: yield}
		for _, c := range cs {
			if links {
				b.seen = inodes{} // of one source: another one may be another file system in the guest
			}
			err := c.walk(func(e *entry) error {
				if err := ctx.Err(); err != nil {
					return err
				}
				return b.add(c, e)
			})
			if errors.Is(err, errStop) {
				return
			}
			if err != nil {
				yield(nil, err)
				return
			}
		}
		if len(b.files) > 0 {
			yield(&agentv1.CopyRequest{Files: b.files}, nil)
		}
	}
}

// inodes are the files with several names, by device and number, each with the first of its names.
type inodes map[[2]uint64]string

// name answers the first name of a file that has had one. Otherwise this is it.
func (seen inodes) name(e *entry, name string) (first string, again bool) {
	if seen == nil || e.kind() != unix.S_IFREG || e.st.Nlink < 2 {
		return "", false
	}
	inode := [2]uint64{e.st.Dev, e.st.Ino}
	if first, again = seen[inode]; !again {
		seen[inode] = name
	}
	return first, again
}

// batch gathers entries until they fill a message.
type batch struct {
	yield func(*agentv1.CopyRequest, error) bool
	files []*agentv1.File
	size  int
	total int64
	seen  inodes // nil: no hard links
}

func (b *batch) add(c Copy, e *entry) error {
	f := &agentv1.File{
		Path: path.Join(c.Destination, e.name), Mode: e.st.Mode, MtimeUnixNano: e.st.Mtim.Nano(),
	}
	f.Uid, f.Gid = c.owner(e.st.Uid, e.st.Gid)
	switch e.kind() {
	case unix.S_IFLNK:
		link, err := e.link()
		if err != nil {
			return err
		}
		f.Link = link
	case unix.S_IFREG:
		first, again := b.seen.name(e, f.Path)
		if !again {
			return b.content(c, e, f)
		}
		f.Mode, f.Link = f.Mode|unix.S_IFMT, first
	}
	return b.push(f)
}

// content splits a file over as many entries as it needs. The file may change while
// it is read; what is read is one prefix of it, bounded as a whole.
func (b *batch) content(c Copy, e *entry, first *agentv1.File) error {
	in, err := e.open()
	if err != nil {
		return err
	}
	defer in.Close()
	for offset := uint64(0); ; {
		data := make([]byte, batchBytes)
		n, err := io.ReadFull(in, data)
		end := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
		if err != nil && !end {
			return fmt.Errorf("mount %s: %w", c.Destination, err)
		}
		if b.total += int64(n); b.total > MaxCopies {
			return fmt.Errorf("mount %s: %s grew over %d MiB: %w", c.Destination, c.Source, MaxCopies>>20,
				errdefs.ErrResourceExhausted)
		}
		if n > 0 || offset == 0 {
			f := &agentv1.File{
				Path: first.Path, Mode: first.Mode, Uid: first.Uid, Gid: first.Gid, MtimeUnixNano: first.MtimeUnixNano,
				Data: data[:n:n], Append: offset > 0, Offset: offset,
			}
			if err := b.push(f); err != nil {
				return err
			}
		}
		if end {
			return nil
		}
		offset += uint64(n)
	}
}

func (b *batch) push(f *agentv1.File) error {
	if len(b.files) > 0 && (b.size+len(f.Data) > batchBytes || len(b.files) >= batchFiles) {
		if !b.yield(&agentv1.CopyRequest{Files: b.files}, nil) {
			return errStop
		}
		b.files, b.size = nil, 0
	}
	b.files, b.size = append(b.files, f), b.size+len(f.Data)
	return nil
}
