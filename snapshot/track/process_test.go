package track

import (
	"bufio"
	"fmt"
	"os"
	"runtime/debug"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// The process whose pages are missing is this program, under another name. It does what the
// lines on its stdin order, all at the same time, and answers when that is done.
const asProcess = "GODWIT_TEST_MISSING_PAGES"

func TestMain(m *testing.M) {
	if os.Getenv(asProcess) != "" {
		if err := process(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

const ramPages = 1024

// process maps its RAM in two parts, as a VMM of a large VM does. A thread that waits for a page
// is one that Go knows nothing of: nothing may want to stop it.
func process() error {
	debug.SetGCPercent(-1)
	mem := make([][]byte, 2)
	for i := range mem {
		var err error
		mem[i], err = unix.Mmap(3, int64(i)*ramPages/2*pageSize, ramPages/2*pageSize, unix.PROT_READ|unix.PROT_WRITE,
			unix.MAP_SHARED)
		if err != nil {
			return err
		}
	}
	fd, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC|unix.O_NONBLOCK, 0, 0)
	if errno != 0 {
		return errno
	}
	zeros, err := os.Open("/dev/zero")
	if err != nil {
		return err
	}
	defer zeros.Close()
	fmt.Println(fd)
	var out sync.Mutex
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		var id, at int
		var what string
		if _, err := fmt.Sscan(in.Text(), &id, &what, &at); err != nil {
			return err
		}
		go func() {
			page := mem[at/(ramPages/2)][at%(ramPages/2)*pageSize:][:pageSize]
			first := byte(0)
			switch what {
			case "read":
				first = page[0]
			case "write":
				page[7] = 0xa5
			case "kernel": // writes, in the name of the process
				if _, err := unix.Read(int(zeros.Fd()), page[8:16]); err != nil {
					what = err.Error()
				}
			}
			out.Lock()
			defer out.Unlock()
			fmt.Println(id, what, first)
		}()
	}
	return in.Err()
}
