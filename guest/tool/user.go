package tool

import (
	"fmt"

	"github.com/containerd/errdefs"
	"github.com/moby/sys/user"

	"godwit.dev/godwit/api/guesttool"
)

// identity resolves USER[:GROUP] by the files of the image.
func identity(name string) (*guesttool.Identity, error) {
	u, err := user.GetExecUserPath(name, nil, "/etc/passwd", "/etc/group")
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
