package tool

import (
	"fmt"
	"io"
	"os"
	"syscall"

	"github.com/containerd/errdefs"
	"github.com/moby/sys/user"

	"godwit.dev/godwit/api/guesttool"
)

// databaseMax is what is read of a passwd or group.
const databaseMax = 4 << 20

// database opens a file of the image that names users or groups. One that is no file, or not there, is empty: the image
// may have a fifo in its place, to whose other end nothing comes.
func database(path string) io.ReadCloser {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0)
	if err == nil {
		if fi, err := f.Stat(); err == nil && fi.Mode().IsRegular() {
			return struct {
				io.Reader
				io.Closer
			}{io.LimitReader(f, databaseMax), f}
		}
		f.Close()
	}
	return io.NopCloser(io.LimitReader(nil, 0))
}

// identity resolves USER[:GROUP] by the files of the image.
func identity(name string) (*guesttool.Identity, error) {
	return identityIn(name, "/etc/passwd", "/etc/group")
}

func identityIn(name, passwd, group string) (*guesttool.Identity, error) {
	users, groups := database(passwd), database(group)
	defer users.Close()
	defer groups.Close()
	u, err := user.GetExecUser(name, nil, users, groups)
	if err != nil {
		return nil, fmt.Errorf("user %q of the VM: %w: name one of its /etc/passwd, or a number: %w", name, err,
			errdefs.ErrInvalidArgument)
	}
	id := &guesttool.Identity{UID: uint32(u.Uid), GID: uint32(u.Gid)}
	for _, g := range u.Sgids {
		id.Groups = append(id.Groups, uint32(g))
	}
	return id, nil
}
