package stage

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/moby/sys/user"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// passwdMax is what is read of a passwd: it is read by the agent's processes, which no memory limit of a container
// holds.
const passwdMax = 1 << 20

// openProc opens the agent's /proc, before that of a container is in its place.
func openProc() (int, error) {
	fd, err := unix.Open("/proc", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open /proc: %w", err)
	}
	return fd, nil
}

// setHome gives a process the HOME that its user's passwd entry says, unless it has one. The caller sees what the
// process is going to see. proc is the agent's /proc.
func setHome(proc int, p *specs.Process) {
	for _, kv := range p.Env {
		if strings.HasPrefix(kv, "HOME=") {
			return
		}
	}
	p.Env = append(p.Env[:len(p.Env):len(p.Env)], "HOME="+homeIn(proc, "/etc/passwd", p.User.UID))
}

// homeIn is what a passwd says. The file is the container's: it may be a fifo, to whose other end nothing ever comes,
// a device, or of any size.
func homeIn(proc int, path string, uid uint32) string {
	const none = "/"
	f, err := openText(proc, path)
	if err != nil {
		return none
	}
	defer f.Close()
	users, err := user.ParsePasswdFilter(io.LimitReader(f, passwdMax), func(u user.User) bool { return u.Uid == int(uid) })
	if err != nil || len(users) == 0 || users[0].Home == "" {
		return none
	}
	return users[0].Home
}

// openText opens a regular file, and nothing else.
func openText(proc int, path string) (*os.File, error) {
	found, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(found)
	var st unix.Stat_t
	if err := unix.Fstat(found, &st); err != nil {
		return nil, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, unix.EINVAL
	}
	fd, err := unix.Openat(proc, fmt.Sprintf("self/fd/%d", found), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY|
		unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), path), nil
}
