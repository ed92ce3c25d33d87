package agentd

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"

	agentv1 "godwit.dev/godwit/api/agent/lean"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// readBackMax bounds what ReadBack answers.
const readBackMax = 64 << 10

// keptMax bounds the files of a container that are kept open.
const keptMax = 64

// keep keeps a file that was copied in, in the place of an earlier one of the path.
func (c *container) keep(path string, f *os.File) error {
	path = filepath.Clean("/" + path)
	var st unix.Stat_t
	err := unix.Fstat(int(f.Fd()), &st)
	old := c.kept[path]
	switch {
	case err != nil:
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		err = fmt.Errorf("keep for ReadBack: it is no regular file: %w", errdefs.ErrInvalidArgument)
	case old == nil && len(c.kept) >= keptMax:
		err = fmt.Errorf("keep for ReadBack: more than %d files: %w", keptMax, errdefs.ErrResourceExhausted)
	}
	if err != nil {
		f.Close()
		return err
	}
	if old != nil {
		old.Close()
	}
	if c.kept == nil {
		c.kept = make(map[string]*os.File)
	}
	c.kept[path] = f
	return nil
}

func (c *container) closeKept() {
	for _, f := range c.kept {
		f.Close()
	}
	c.kept = nil
}

// ReadBack implements agentv1.AgentService.
func (s *Service) ReadBack(ctx context.Context, r *agentv1.ReadBackRequest) (*agentv1.ReadBackResponse, error) {
	c, err := s.container(r.Container)
	if err != nil {
		return nil, err
	}
	if err := c.turn.Take(ctx); err != nil {
		return nil, fmt.Errorf("read %s back: %w", r.Path, err)
	}
	defer c.turn.Give()
	f := c.kept[filepath.Clean("/"+r.Path)]
	if f == nil {
		return nil, fmt.Errorf("read %s back: it was not copied in to be kept: %w", r.Path, errdefs.ErrNotFound)
	}
	limit := int64(r.Max)
	if limit == 0 || limit > readBackMax {
		limit = readBackMax
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nil, fmt.Errorf("read %s back: %w", r.Path, err)
	}
	data, err := io.ReadAll(io.NewSectionReader(f, max(0, st.Size-limit), limit))
	if err != nil {
		return nil, fmt.Errorf("read %s back: %w", r.Path, err)
	}
	return &agentv1.ReadBackResponse{Data: data, Missing: st.Nlink == 0, Size: uint64(st.Size)}, nil
}
