package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/guesttool"
	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/internal/archive"
)

// Copied is what a copy has carried: files, bytes, and what was skipped.
type Copied = archive.Result

// FileInfo is what a path of a VM is.
type FileInfo = guesttool.FileInfo

// CopyOptions of CopyFrom and CopyTo.
type CopyOptions struct {
	FollowLink bool        // of a source that is a symbolic link, copy what it leads to
	Owners     bool        // keep owners, setuid and setgid
	Progress   func(int64) // may be nil; called with each piece of the stream, in bytes
}

// Stat says what a path of the VM is. NotFound: there is none.
func (c *Client) Stat(ctx context.Context, vm *nodev1.VM, name string) (*FileInfo, error) {
	info := new(FileInfo)
	return info, c.ask(ctx, vm, info, guesttool.Stat, name)
}

// Pack writes a path of the VM as a tar stream, in which it is called as.
func (c *Client) Pack(ctx context.Context, vm *nodev1.VM, name, as string, w io.Writer) (Copied, error) {
	r, err := c.runTool(ctx, vm, []string{guesttool.Pack, name, as}, nil, w)
	return result(r, err)
}

// Unpack reads a tar stream into a directory of the VM, whose members have the name under or lie below it; empty: any.
func (c *Client) Unpack(ctx context.Context, vm *nodev1.VM, dir, under string, owners bool, r io.Reader,
) (Copied, error) {
	keep := ""
	if owners {
		keep = guesttool.KeepOwners
	}
	report, err := c.runTool(ctx, vm, []string{guesttool.Unpack, dir, under, keep}, r, nil)
	return result(report, err)
}

func result(r *guesttool.Report, err error) (Copied, error) {
	if r == nil || r.Result == nil {
		return Copied{}, err
	}
	return *r.Result, err
}

// Stream writes a path of the VM as a tar stream, in which it has its own name.
func (c *Client) Stream(ctx context.Context, vm *nodev1.VM, src string, w io.Writer, o CopyOptions) (Copied, error) {
	from, err := c.Stat(ctx, vm, rooted(src))
	if err != nil {
		return Copied{}, err
	}
	p, err := plan(rooted(src), from, "/", &FileInfo{Path: "/", Mode: fs.ModeDir}, o)
	if err != nil {
		return Copied{}, err
	}
	return c.Pack(ctx, vm, p.source, p.as, w)
}

// CopyFrom copies a path of the VM to this host, by the rules of docker cp. The guest is not trusted: nothing lands
// outside of dst.
func (c *Client) CopyFrom(ctx context.Context, vm *nodev1.VM, src, dst string, o CopyOptions) (Copied, error) {
	from, err := c.Stat(ctx, vm, rooted(src))
	if err != nil {
		return Copied{}, err
	}
	to, err := archive.Look(dst)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return Copied{}, err
	}
	p, err := plan(rooted(src), from, dst, to, o)
	if err != nil {
		return Copied{}, err
	}
	root, err := os.OpenRoot(p.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return Copied{}, fmt.Errorf("there is no directory %s. Make it first: %w", p.dir, errdefs.ErrNotFound)
	}
	if err != nil {
		return Copied{}, fmt.Errorf("open %s: %w", p.dir, err)
	}
	defer root.Close()
	return pipe(ctx, func(ctx context.Context, w io.Writer) (Copied, error) {
		return c.Pack(ctx, vm, p.source, p.as, w)
	}, func(_ context.Context, r io.Reader) (Copied, error) {
		u := &archive.Unpacker{Root: root, Under: p.as, Owners: o.Owners}
		defer context.AfterFunc(ctx, u.Abort)()
		return u.Unpack(counted(r, o.Progress))
	})
}

// CopyTo copies a path of this host into the VM, by the rules of docker cp.
func (c *Client) CopyTo(ctx context.Context, vm *nodev1.VM, src, dst string, o CopyOptions) (Copied, error) {
	from, err := archive.Look(src)
	if errors.Is(err, fs.ErrNotExist) {
		return Copied{}, fmt.Errorf("there is no %s on this host: %w", src, errdefs.ErrNotFound)
	}
	if err != nil {
		return Copied{}, err
	}
	to, err := c.Stat(ctx, vm, rooted(dst))
	if err != nil && !errdefs.IsNotFound(err) {
		return Copied{}, err
	}
	if err != nil {
		to = nil
	}
	absolute, err := filepath.Abs(src)
	if err != nil {
		return Copied{}, err
	}
	if src[len(src)-1] == '/' || path.Base(src) == "." {
		absolute += "/" + path.Base(src)
	}
	p, err := plan(absolute, from, rooted(dst), to, o)
	if err != nil {
		return Copied{}, err
	}
	root, err := os.OpenRoot(path.Dir(p.source))
	if err != nil {
		return Copied{}, fmt.Errorf("open %s: %w", path.Dir(p.source), err)
	}
	defer root.Close()
	name := path.Base(p.source)
	if name == "/" {
		name = "."
	}
	return pipe(ctx, func(_ context.Context, w io.Writer) (Copied, error) {
		return archive.Pack(w, root, name, p.as)
	}, func(ctx context.Context, r io.Reader) (Copied, error) {
		return c.Unpack(ctx, vm, p.dir, p.as, o.Owners, counted(r, o.Progress))
	})
}

// paddingMax bounds what may follow the end of an archive, in bytes.
const paddingMax = 1 << 20

// pipe runs both ends of a copy. The end that fails first has its error told, and the other one ended. What the
// receiver has is the result; names that the sender skipped are added.
func pipe(ctx context.Context, send func(context.Context, io.Writer) (Copied, error),
	receive func(context.Context, io.Reader) (Copied, error),
) (Copied, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	r, w := io.Pipe()
	type end struct {
		result Copied
		err    error
	}
	sent := make(chan end, 1)
	go func() {
		result, err := send(ctx, w)
		if err != nil {
			_ = w.CloseWithError(err)
		} else {
			_ = w.Close()
		}
		sent <- end{result, err}
	}()
	got, err := receive(ctx, r)
	if err != nil {
		_ = r.CloseWithError(err)
		cancel(err)
	} else if _, err := io.CopyN(io.Discard, r, paddingMax); err == nil { // no archive ends with so much
		_ = r.Close()
		cancel(nil)
	}
	from := <-sent
	got.Skipped += from.result.Skipped
	got.Names = append(got.Names, from.result.Names...)
	switch {
	case err == nil:
		return got, from.err
	case from.err != nil && !errors.Is(from.err, context.Canceled) && !errors.Is(from.err, err):
		return got, from.err // the receiver has had half of an archive
	}
	return got, err
}

type counter struct {
	io.Reader
	tell func(int64)
}

func (c counter) Read(b []byte) (int, error) {
	n, err := c.Reader.Read(b)
	c.tell(int64(n))
	return n, err
}

func counted(r io.Reader, tell func(int64)) io.Reader {
	if tell == nil {
		return r
	}
	return counter{r, tell}
}

// rooted is a path of a VM from its root on.
func rooted(name string) string {
	if !path.IsAbs(name) {
		return "/" + name
	}
	return name
}
