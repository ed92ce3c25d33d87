package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
)

// Where a copy lands, by the rules of docker cp: file or directory, onto what is there or is not.
func TestCopyPlan(t *testing.T) {
	file, dir := &FileInfo{Path: "/src/real"}, &FileInfo{Path: "/src/real", Mode: fs.ModeDir}
	link := &FileInfo{Path: "/src/real", Link: true}
	to := func(path string, mode fs.FileMode) *FileInfo { return &FileInfo{Path: path, Mode: mode} }
	for _, c := range []struct {
		src  string
		from *FileInfo
		dst  string
		to   *FileInfo
		o    CopyOptions
		want string
	}{
		{"/src/f", file, "/d/new", nil, CopyOptions{}, "/src/real as new in /d"},
		{"/src/f", file, "/d/new/", nil, CopyOptions{}, "NotFound"},
		{"/src/f", file, "/d/", to("/real/d", fs.ModeDir), CopyOptions{}, "/src/real as f in /real/d"},
		{"/src/f", file, "/d/g", to("/real/g", 0), CopyOptions{}, "/src/real as g in /real"},
		{"/src/f", file, "/d/g/", to("/real/g", 0), CopyOptions{}, "InvalidArgument"},
		{"/src/f/", file, "/d", nil, CopyOptions{}, "InvalidArgument"},
		{"/src/f/.", file, "/d", nil, CopyOptions{}, "InvalidArgument"},
		{"/src/d", dir, "/d/new/", nil, CopyOptions{}, "/src/real as new in /d"},
		{"/src/d/", dir, "/d", to("/d", fs.ModeDir), CopyOptions{}, "/src/real as d in /d"},
		{"/src/d/.", dir, "/d", to("/d", fs.ModeDir), CopyOptions{}, "/src/real as . in /d"},
		{"/src/d/.", dir, "/d", nil, CopyOptions{}, "/src/real as d in /"},
		{"/src/d", dir, "/d", to("/d", 0), CopyOptions{}, "InvalidArgument"},
		{"/src/l", link, "/d", to("/d", fs.ModeDir), CopyOptions{}, "/src/l as l in /d"},
		{"/src/l", link, "/d", to("/d", fs.ModeDir), CopyOptions{FollowLink: true}, "/src/real as l in /d"},
		{"/src/../..", dir, "/d", to("/d", fs.ModeDir), CopyOptions{}, "/src/real as . in /d"},
		{"/.", dir, "/d", to("/d", fs.ModeDir), CopyOptions{}, "/src/real as . in /d"},
	} {
		p, err := plan(c.src, c.from, c.dst, c.to, c.o)
		var got string
		switch {
		case errdefs.IsNotFound(err):
			got = "NotFound"
		case errdefs.IsInvalidArgument(err):
			got = "InvalidArgument"
		case err == nil:
			got = fmt.Sprintf("%s as %s in %s", p.source, p.as, p.dir)
		}
		if got != c.want {
			t.Errorf("%s to %s: %q, %v; want %q", c.src, c.dst, got, err, c.want)
		}
	}
}

// The end of a copy that fails first is the one whose error is told. The other one is ended, even if it would send
// for ever.
func TestCopyPipe(t *testing.T) {
	broken := errors.New("broken")
	endless := func(ctx context.Context, w io.Writer) (Copied, error) {
		for {
			if _, err := w.Write(make([]byte, 4096)); err != nil {
				<-ctx.Done()
				return Copied{}, ctx.Err()
			}
		}
	}
	read := func(_ context.Context, r io.Reader) (Copied, error) {
		n, err := io.Copy(io.Discard, r)
		if err != nil {
			return Copied{}, fmt.Errorf("read archive: %w", err)
		}
		return Copied{Bytes: n}, nil
	}
	if _, err := pipe(t.Context(), func(_ context.Context, w io.Writer) (Copied, error) {
		_, _ = io.WriteString(w, "half")
		return Copied{}, broken
	}, read); !errors.Is(err, broken) || err.Error() != "broken" {
		t.Errorf("sender: %v", err)
	}
	if _, err := pipe(t.Context(), endless, func(context.Context, io.Reader) (Copied, error) {
		return Copied{}, broken
	}); !errors.Is(err, broken) {
		t.Errorf("receiver: %v", err)
	}
	got, err := pipe(t.Context(), func(_ context.Context, w io.Writer) (Copied, error) {
		_, err := io.Copy(w, strings.NewReader("whole"))
		return Copied{Skipped: 1, Names: []string{"dev"}}, err
	}, read)
	if err != nil || got.Bytes != 5 || got.Skipped != 1 || got.Names[0] != "dev" {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := pipe(t.Context(), endless, func(_ context.Context, r io.Reader) (Copied, error) {
		_, err := io.ReadFull(r, make([]byte, 10))
		return Copied{}, err
	}); err != nil && !errors.Is(err, context.Canceled) {
		t.Errorf("a sender that does not end: %v", err)
	}
}
