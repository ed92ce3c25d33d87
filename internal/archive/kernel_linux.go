package archive

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// nonblock keeps an open from waiting for the other end of a pipe.
const nonblock = unix.O_NONBLOCK

// kernels are the file systems in which the kernel shows itself (statfs(2)).
var kernels = map[int64]bool{
	unix.PROC_SUPER_MAGIC: true, unix.SYSFS_MAGIC: true, unix.DEVPTS_SUPER_MAGIC: true, unix.CGROUP_SUPER_MAGIC: true,
	unix.CGROUP2_SUPER_MAGIC: true, unix.DEBUGFS_MAGIC: true, unix.TRACEFS_MAGIC: true, unix.SECURITYFS_MAGIC: true,
	unix.BPF_FS_MAGIC: true, unix.PSTOREFS_MAGIC: true, mqueue: true,
}

// mqueue is the magic number of the file system of message queues, which has no name in statfs(2)'s list.
const mqueue = 0x19800202

// ofKernel reports whether an open file is of such a file system.
func ofKernel(f *os.File) (bool, error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &st); err != nil {
		return false, fmt.Errorf("read the file system of %s: %w", f.Name(), err)
	}
	return kernels[int64(st.Type)], nil
}
