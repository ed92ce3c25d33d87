package shim

import (
	"time"
)

// eventually polls what another process or goroutine brings about.
func eventually(ok func() bool) bool {
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(2 * time.Millisecond) {
		if ok() {
			return true
		}
	}
	return false
}
