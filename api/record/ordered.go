package record

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/internal/durable"
)

// OrderedRestore is the order to give the store of the records a new incarnation as soon as the
// controller's godwitd starts, before it serves anybody: a file in its state_dir, as JSON.
type OrderedRestore struct {
	Retire []string `json:"retire"`
}

func orderedFile(dir string) string { return filepath.Join(dir, "restore-at-start.json") }

// Store makes the order durable; it answers the file.
func (o OrderedRestore) Store(dir string) (path string, err error) {
	data, err := json.Marshal(o)
	if err != nil {
		return "", err
	}
	path = orderedFile(dir)
	if err := durable.WriteFile(path, data, 0o600); err != nil {
		if gone := os.Remove(path); !errors.Is(gone, os.ErrNotExist) {
			err = errors.Join(err, gone)
		}
		return "", fmt.Errorf("order a restore of the store: %w", err)
	}
	return path, nil
}

// ReadOrdered answers the order that waits in dir, nil if there is none. done takes it away once
// it was given; given twice it is only another incarnation.
func ReadOrdered(dir string) (order *OrderedRestore, done func() error, err error) {
	path := orderedFile(dir)
	data, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil, nil
	}
	if err == nil {
		if err = json.Unmarshal(data, &order); err != nil {
			err = fmt.Errorf("%w: %w", err, errdefs.ErrDataLoss)
		}
	}
	if err != nil {
		return nil, nil, fmt.Errorf("read the order to restore the store (give it again, or remove %s): %w", path, err)
	}
	if order == nil {
		order = &OrderedRestore{}
	}
	return order, func() error { return errors.Join(os.Remove(path), durable.SyncDir(dir)) }, nil
}
