package process

import (
	"fmt"
	"os"
	"strings"
	"sync/atomic"

	"github.com/containerd/errdefs"
)

// bootFile is where Linux names the boot (proc_sys_kernel(5), random/boot_id): a UUID.
const bootFile = "/proc/sys/kernel/random/boot_id"

var boot atomic.Pointer[string]

// Boot names this boot of the host; no other boot has that name. A pid and a start time say
// which process is meant within one boot alone.
func Boot() (string, error) {
	if known := boot.Load(); known != nil {
		return *known, nil
	}
	data, err := os.ReadFile(bootFile)
	if err != nil {
		return "", fmt.Errorf("read the host's boot id: %w: %w", err, errdefs.ErrUnavailable)
	}
	id := strings.TrimSpace(string(data))
	if id == "" {
		return "", fmt.Errorf("read the host's boot id: %s is empty: %w", bootFile, errdefs.ErrUnavailable)
	}
	boot.Store(&id)
	return id, nil
}
