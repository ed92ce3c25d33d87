package journal

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"godwit.dev/godwit/internal/durable"
)

// exitFile is in the bundle. Should the shim die before Delete, containerd is told what it says, and
// not another end.
const exitFile = "godwit-end"

// Exit is how a task has ended.
type Exit struct {
	Status uint32    `json:"status"`
	At     time.Time `json:"at"`
}

// ReadExit reads what WriteExit has left; os.ErrNotExist says that the task had not ended.
func ReadExit(bundle string) (e Exit, err error) {
	data, err := os.ReadFile(filepath.Join(bundle, exitFile))
	if err != nil {
		return e, fmt.Errorf("read end of task: %w", err)
	}
	if err := json.Unmarshal(data, &e); err != nil {
		return e, fmt.Errorf("read end of task in %s: %w", bundle, err)
	}
	return e, nil
}

// WriteExit leaves in the bundle how its task has ended. It comes before containerd is told.
func WriteExit(bundle string, e Exit) error {
	data, err := json.Marshal(e)
	if err != nil {
		return err
	}
	path := filepath.Join(bundle, exitFile)
	if err := os.WriteFile(durable.Unfinished(path), data, 0o600); err != nil {
		return fmt.Errorf("note end of task: %w", err)
	}
	return os.Rename(durable.Unfinished(path), path)
}
