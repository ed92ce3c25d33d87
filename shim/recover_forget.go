package shim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/shim/journal"
)

// Forget frees a VM of which containerd has no task any more, though it left the bundle:
// what it starts after the death of a shim gets a few seconds, is killed then and never
// started again. A VM that anybody holds is not touched.
func Forget(ctx context.Context, host *Host, namespace, id string) error {
	dir := host.Config.VMDir(namespace, id)
	j, err := claimJournal(dir, checkUnowned)
	if errdefs.IsNotFound(err) {
		return sweep(dir)
	}
	if err == nil {
		err = removeServed(j.Bundle)
	}
	if err == nil {
		err = cleanUp(ctx, host, dir, j)
	}
	if err != nil {
		return fmt.Errorf("forget VM %s/%s: %w", namespace, id, err)
	}
	return nil
}

// removeServed removes the socket that a dead shim has served on.
func removeServed(bundle string) error {
	address, err := ServedAt(bundle)
	if err != nil {
		return err
	}
	if path, ok := strings.CutPrefix(address, "unix://"); ok {
		return removeFile(path)
	}
	return nil
}

// ServedAt answers the address of the bundle's shim, as containerd keeps it there; empty:
// it keeps none.
func ServedAt(bundle string) (string, error) {
	data, err := os.ReadFile(filepath.Join(bundle, "bootstrap.json"))
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	var served struct {
		Address string `json:"address"`
	}
	if json.Unmarshal(data, &served) != nil {
		return "", nil // it names none
	}
	return served.Address, nil
}

// checkUnowned wants a VM that neither an operation nor a process holds.
func checkUnowned(j *journal.Journal) error {
	wakes, err := wakeCommitted(j)
	if err != nil {
		return err
	}
	alive, err := shimOf(j).Alive()
	if err != nil {
		return fmt.Errorf("its shim: %w", err)
	}
	if j.Phase != journal.Own || j.Adopted || wakes || alive {
		return fmt.Errorf("it has an owner: %w", errdefs.ErrFailedPrecondition)
	}
	return nil
}

// checkForgotten wants an unowned VM whose task containerd cannot know: after a restart of the
// host its bundle is gone.
func checkForgotten(j *journal.Journal) error {
	if err := checkUnowned(j); err != nil {
		return err
	}
	if _, err := os.Stat(j.Bundle); !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("its task is containerd's to end: %w", errdefs.ErrFailedPrecondition)
	}
	return nil
}
