//go:build !amd64

package stage

import "golang.org/x/sys/unix"

// forkable says that this machine has no spawn: no guest has this architecture.
const forkable = false

func spawn(*cloneArgs, uintptr, *call, **call) (pid uintptr) { return ^uintptr(unix.ENOSYS) + 1 }
