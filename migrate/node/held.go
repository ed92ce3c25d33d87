package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/version"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	nodev1 "godwit.dev/godwit/api/node/v1"
)

// journal is what a report tells of a VM's journal (package shim).
type journal struct {
	Version    int    `json:"version"`
	Phase      string `json:"phase"`
	Generation uint64 `json:"generation"`
	Operation  string `json:"operation"`
	Attempt    uint32 `json:"attempt"`
	Digest     string `json:"digest"`
	Repository string `json:"repository"`
	Refusal    string `json:"refusal"`
	Spec       struct {
		UID string `json:"uid"`
	} `json:"spec"`
}

// Held answers what the journals of this node say, all of them: one that cannot be read is an
// error, and never a VM that is not here.
func (m *Machines) Held() (all []*nodev1.Held, err error) {
	root := m.Config.VMsDir()
	namespaces, err := directories(root)
	if err != nil {
		return nil, fmt.Errorf("list journals: %w", err)
	}
	for _, namespace := range namespaces {
		ids, err := directories(filepath.Join(root, namespace))
		if err != nil {
			return nil, fmt.Errorf("list journals: %w", err)
		}
		for _, id := range ids {
			h, err := held(filepath.Join(root, namespace, id, "node.json"))
			if err != nil {
				return nil, err
			}
			if h != nil {
				h.Vm = &nodev1.VM{Namespace: namespace, Id: id}
				all = append(all, h)
			}
		}
	}
	return all, nil
}

// GivenUp reports whether this node has given up to run a VM that was to come: what it has written down is that this
// attempt never runs here, and why, if it knows.
func (m *Machines) GivenUp(vm *nodev1.VM, ref *machinev1.Ref) (over bool, why string, err error) {
	j, err := readJournal(filepath.Join(m.Config.VMDir(vm.GetNamespace(), vm.GetId()), "node.json"))
	if j == nil || err != nil {
		return false, "", err
	}
	over = j.Phase == "FENCED" && j.Operation == ref.GetOperation() && j.Attempt == ref.GetAttempt()
	return over, j.Refusal, nil
}

// held reads one journal. Of a VM that is freed and whose journal has no spec any more there is
// nothing to tell.
func held(path string) (*nodev1.Held, error) {
	j, err := readJournal(path)
	switch {
	case j == nil || err != nil:
		return nil, err
	case !version.KnowsJournal(j.Version):
		return nil, fmt.Errorf("read journal %s: version %d, this build knows %d: %w", path, j.Version, version.Journal,
			errdefs.ErrNotImplemented)
	case j.Spec.UID == "" && (j.Phase == "FENCED" || j.Phase == "RELEASED"):
		return nil, nil
	}
	return &nodev1.Held{
		Uid: j.Spec.UID, Generation: j.Generation, Phase: j.Phase, Operation: j.Operation, Attempt: j.Attempt,
		Digest: j.Digest, Repository: j.Repository,
	}, nil
}

// readJournal reads one journal; nil: it is not there.
func readJournal(path string) (*journal, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) { // freed meanwhile, or not begun: nothing runs
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read journal: %w", err)
	}
	j := new(journal)
	if err := json.Unmarshal(data, j); err != nil {
		return nil, fmt.Errorf("read journal %s: %w: %w", path, err, errdefs.ErrDataLoss)
	}
	return j, nil
}
