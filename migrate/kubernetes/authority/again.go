package authority

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"godwit.dev/godwit/migrate/kubernetes/store"
	recordstore "godwit.dev/godwit/migrate/store"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Reasons of denials.
const (
	notThisNode = "NotThisNode"
	madeAgain   = "NodeMadeAgain" // another machine may have the name of the node now
)

// replaced says why, and for which reason, another machine does not get the name of a node yet; empty: it has the name
// from now on. With the name it would say of each VM of the first machine that there is none, and the VM would run a
// second time.
func (s *signer) replaced(ctx context.Context, v verdict) (denied, reason string, err error) {
	before, err := s.records.Machine(ctx, v.node)
	if err != nil {
		return "", "", err
	}
	n := &corev1.Node{}
	err = s.current.Get(ctx, types.NamespacedName{Name: v.node}, n)
	if err != nil && !store.IsAbsent(err) {
		return "", "", fmt.Errorf("read node %s: %w", v.node, err)
	}
	switch there := err == nil && string(n.UID) == v.machine; {
	case !there && before.UID == v.machine: // its token was made before the Node was made again
		return "", "", nil
	case !there:
		return fmt.Sprintf("the token that asks is of a Node %s with uid %s, which is not there", v.node, v.machine),
			notThisNode, nil
	}
	now := store.MachineOf(n)
	if before.UID != "" && !before.Is(now) {
		held, err := s.held(ctx, v.node, n.Labels[LabelReplaces] == before.UID)
		if err != nil || held > 0 {
			return refusal(v.node, before, now, held), madeAgain, err
		}
	}
	if now == before || now.UID == before.UID && !now.Told() { // what it said once stays noted
		return "", "", nil
	}
	return "", "", s.records.SetMachine(ctx, v.node, now)
}

// held counts the VMs that the records have at a node. Once somebody vouches that its machine runs nothing any more,
// those count that the operator gives up or restores. Of all others, which a node made, the new machine says the end.
func (s *signer) held(ctx context.Context, node string, vouched bool) (int, error) {
	held, err := s.records.Find(ctx, recordstore.Which{Node: node})
	if err != nil {
		return 0, err
	}
	return len(slices.DeleteFunc(held.Records, func(r *nodev1.Record) bool {
		return vouched && r.GetMadeBy() != ""
	})), nil
}

// refusal says what to do first, and the ids last: they are a kubelet's words, and an event has 1024 bytes.
func refusal(node string, before, now store.Machine, held int) string {
	return fmt.Sprintf("Node %s was made again (uid %s), and its machine is not known to be that of before (uid %s), "+
		"which has VMs, by the records: %d. If it is the same machine, set no label: drain the node while its certificate "+
		"is valid, and it gets the next one. If it is another one, first switch that of before off for good. Then kubectl "+
		"label node %s %s=%s, and delete its VMs, or have them restored elsewhere (onNodeLoss). See "+
		"docs/how-to/kubernetes.md#a-node-that-was-made-again. systemUUID and machineID are %+.40q and %+.40q, and were "+
		"%+.40q and %+.40q", node, now.UID, before.UID, held, node, LabelReplaces, before.UID, now.SystemUUID,
		now.MachineID, before.SystemUUID, before.MachineID)
}
