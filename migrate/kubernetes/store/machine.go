package store

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/containerd/errdefs"
	corev1 "k8s.io/api/core/v1"
)

// machine is the kind of notes that name the machine of a node: that for which the node got its last certificate.
const machine = "machine"

// Machine is what the records mean by a node's name.
type Machine struct {
	UID        string `json:"uid"` // of its Node object
	SystemUUID string `json:"systemUUID,omitempty"`
	MachineID  string `json:"machineID,omitempty"`
}

// MachineOf is the machine of a Node object, by what its kubelet says of it.
func MachineOf(n *corev1.Node) Machine {
	return Machine{UID: string(n.UID), SystemUUID: n.Status.NodeInfo.SystemUUID, MachineID: n.Status.NodeInfo.MachineID}
}

// Told reports whether the ids can tell a machine from others. One alone cannot: images that were cloned share
// machine-ids, and boards of one maker system UUIDs.
func (m Machine) Told() bool { return m.SystemUUID != "" && m.MachineID != "" }

// Is reports whether two are one machine: they have one Node object, or both ids are the same.
func (m Machine) Is(other Machine) bool {
	return m.UID == other.UID || m.Told() && m.SystemUUID == other.SystemUUID && m.MachineID == other.MachineID
}

// Machine answers which machine the records mean by a node; without a uid: it is not known.
func (s *Store) Machine(ctx context.Context, node string) (m Machine, err error) {
	o, there, err := s.maps.get(ctx, noteName(machine, node))
	if err != nil {
		return Machine{}, fmt.Errorf("read which machine node %s is: %w", node, err)
	}
	if !there {
		return Machine{}, nil
	}
	if err = json.Unmarshal(o.BinaryData[noteValue], &m); err != nil || m.UID == "" || o.Data[noteKey] != node {
		return Machine{}, fmt.Errorf("read which machine node %s is: configmap %s does not say it: %w", node, o.Name,
			errdefs.ErrDataLoss)
	}
	return m, nil
}

// SetMachine says which machine a node is from now on.
func (s *Store) SetMachine(ctx context.Context, node string, m Machine) error {
	value, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("encode which machine node %s is: %w", node, err)
	}
	return s.Note(ctx, machine, node, value)
}
