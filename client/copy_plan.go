package client

import (
	"fmt"
	"path"
	"strings"

	"github.com/containerd/errdefs"
)

// copyPlan is what a copy does: source is packed, called as, and unpacked into the directory dir.
type copyPlan struct{ source, as, dir string }

// plan follows the rules of docker cp. to is nil for a destination that is not there.
func plan(src string, from *FileInfo, dst string, to *FileInfo, o CopyOptions) (*copyPlan, error) {
	p := &copyPlan{source: from.Path, as: path.Base(path.Clean(src))}
	content, slash := path.Base(src) == "." || strings.HasSuffix(src, "/."), strings.HasSuffix(src, "/")
	if from.Link && !o.FollowLink && !content && !slash {
		p.source = path.Clean(src) // the link itself
	}
	isDir := from.Mode.IsDir() && p.source == from.Path
	if (content || slash) && !isDir {
		return nil, fmt.Errorf("%s is no directory. Write it without the / at its end: %w", path.Clean(src),
			errdefs.ErrInvalidArgument)
	}
	var err error
	switch {
	case to == nil:
		err = p.anew(dst, isDir)
	case to.Mode.IsDir() && content:
		p.dir, p.as = to.Path, "."
	case to.Mode.IsDir():
		p.dir = to.Path
	case isDir:
		err = fmt.Errorf("%s is a directory, and cannot take the place of the file %s. Name another place: %w",
			src, dst, errdefs.ErrInvalidArgument)
	case strings.HasSuffix(dst, "/"):
		err = fmt.Errorf("%s is no directory. Write it without the last /: %w", path.Clean(dst), errdefs.ErrInvalidArgument)
	default:
		p.dir, p.as = path.Dir(to.Path), path.Base(to.Path)
	}
	if p.as == "/" { // the whole root
		p.as = "."
	}
	return p, err
}

// anew plans a destination that is not there.
func (p *copyPlan) anew(dst string, isDir bool) error {
	if !isDir && strings.HasSuffix(dst, "/") {
		return fmt.Errorf("there is no directory %s. Make it first, or write it without the last /: %w", dst,
			errdefs.ErrNotFound)
	}
	p.dir, p.as = path.Dir(path.Clean(dst)), path.Base(path.Clean(dst))
	return nil
}
