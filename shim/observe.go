package shim

import (
	"encoding/json"
	"os"
	"path/filepath"
	"time"
)

// Observation is one start; nothing reads the file yet (docs/metrics.md). A restore
// counts as a restore, whatever the VM's Spec says about its first boot.
type Observation struct {
	Mode    string  `json:"mode"` // boot or restore
	Seconds float64 `json:"seconds"`
	Failed  bool    `json:"failed,omitempty"`
}

// startsFile takes one line of JSON for each start, up to maxStarts bytes.
const (
	startsFile = "starts.jsonl"
	maxStarts  = 1 << 20
)

func (vm *VM) observe(took time.Duration, failed bool) {
	mode := "boot"
	if vm.restored {
		mode = "restore"
	}
	vm.log.Info("start", "mode", mode, "took", took, "failed", failed)
	line, err := json.Marshal(Observation{Mode: mode, Seconds: took.Seconds(), Failed: failed})
	if err != nil {
		return
	}
	path := filepath.Join(vm.host.Config.StateDir, startsFile)
	if info, err := os.Stat(path); err == nil && info.Size() > maxStarts {
		_ = os.Rename(path, path+".old") // the loser of a race finds nothing to move
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		vm.log.Warn("note start", "error", err)
		return
	}
	defer f.Close()
	if _, err := f.Write(append(line, '\n')); err != nil {
		vm.log.Warn("note start", "error", err)
	}
}
