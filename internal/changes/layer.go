package changes

import (
	"archive/tar"
	"fmt"
	"io"
	"path"
	"strings"

	"github.com/containerd/errdefs"
)

// Layer writes changes as the tar stream of a layer, without compression.
type Layer struct{ tar *tar.Writer }

// NewLayer begins a layer.
func NewLayer(w io.Writer) *Layer { return &Layer{tar: tar.NewWriter(w)} }

// Add writes a change.
func (l *Layer) Add(c Change) error {
	name := strings.TrimPrefix(c.Path, "/")
	if strings.HasPrefix(path.Base(name), whiteout) {
		return fmt.Errorf("%s cannot be in an image, where such a name deletes a file. To go on, rename or remove it: %w",
			c.Path, errdefs.ErrFailedPrecondition)
	}
	h := &tar.Header{Typeflag: tar.TypeReg, Name: path.Join(path.Dir(name), whiteout+path.Base(name)),
		Format: tar.FormatPAX}
	if c.Kind != Deleted {
		h = &tar.Header{Typeflag: c.Header.Typeflag, Name: name, Linkname: c.Header.Linkname, Size: c.Header.Size,
			Mode: c.Header.Mode & modeBits, Uid: c.Header.Uid, Gid: c.Header.Gid, ModTime: c.Header.ModTime,
			Format: tar.FormatPAX}
	}
	if h.Typeflag == tar.TypeDir {
		h.Name += "/"
	}
	if err := l.tar.WriteHeader(h); err != nil {
		return fmt.Errorf("write layer: %w", err)
	}
	if h.Typeflag != tar.TypeReg || c.Kind == Deleted {
		return nil
	}
	if _, err := io.Copy(l.tar, c.Content); err != nil {
		return fmt.Errorf("write layer: %s: %w", c.Path, err)
	}
	return nil
}

// Close ends the stream.
func (l *Layer) Close() error {
	if err := l.tar.Close(); err != nil {
		return fmt.Errorf("write layer: %w", err)
	}
	return nil
}
