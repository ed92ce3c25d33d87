package store

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"
)

// machine is the kind of notes that name the machine of a node: the uid of the Node object for which the node got its
// last certificate.
const machine = "machine"

// Machine answers which machine the records mean by a node, as the uid of its Node object; empty: it is not known. A
// Node that was made again under the name is another machine.
func (s *Store) Machine(ctx context.Context, node string) (uid string, err error) {
	o, there, err := s.maps.get(ctx, noteName(machine, node))
	if err != nil {
		return "", fmt.Errorf("read which machine node %s is: %w", node, err)
	}
	if !there {
		return "", nil
	}
	if uid = string(o.BinaryData[noteValue]); uid == "" || o.Data[noteKey] != node {
		return "", fmt.Errorf("read which machine node %s is: configmap %s says nothing: %w", node, o.Name,
			errdefs.ErrDataLoss)
	}
	return uid, nil
}

// SetMachine says which machine a node is from now on.
func (s *Store) SetMachine(ctx context.Context, node, uid string) error {
	return s.Note(ctx, machine, node, []byte(uid))
}
