package shim

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"godwit.dev/godwit/internal/durable"
)

// endNote is where the shim leaves in the bundle how its task has ended. Should the shim
// die before Delete, containerd is told that, and not another end.
const endNote = "godwit-end"

// Ended is how a task has ended.
type Ended struct {
	Status uint32    `json:"status"`
	At     time.Time `json:"at"`
}

// EndOf reads what the shim has left; NotExist says that the task had not ended.
func EndOf(bundle string) (e Ended, err error) {
	data, err := os.ReadFile(filepath.Join(bundle, endNote))
	if err != nil {
		return e, fmt.Errorf("read end of task: %w", err)
	}
	if err := json.Unmarshal(data, &e); err != nil {
		return e, fmt.Errorf("read end of task in %s: %w", bundle, err)
	}
	return e, nil
}

// noteEnd is called before anybody is told.
func noteEnd(bundle string, e Ended) error {
	data, err := json.Marshal(e)
	if err != nil {
		return err
	}
	path := filepath.Join(bundle, endNote)
	if err := os.WriteFile(durable.Unfinished(path), data, 0o600); err != nil {
		return fmt.Errorf("note end of task: %w", err)
	}
	return os.Rename(durable.Unfinished(path), path)
}
