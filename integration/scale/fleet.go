// Package scale measures what many VMs on many nodes cost the controller: the real one, and nodes
// that are godwitd's own loops over real mutual TLS, with shims that only answer.
package scale

import (
	"fmt"
	"net"
	"path/filepath"

	"godwit.dev/godwit/api/record"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// The fleet.
const (
	vmsOfNode       = 10
	firstGeneration = 1

	// nodesWithDeletions are the nodes whose first VM has snapshots that the retention rule deletes; each was
	// made by another node, which deletes them.
	nodesWithDeletions = 50
	deletionsOfNode    = 2
	makerOff           = 200 // from a node with deletions to the node that made its snapshots
)

const repositoryBase = "registry.example/vms/"

func nodeName(i int) string { return fmt.Sprintf("n%05d", i) }

func vmOf(node, i int) *nodev1.VM {
	return &nodev1.VM{Namespace: "scale", Id: fmt.Sprintf("%s-%02d", nodeName(node), i)}
}

func uidOf(node, i int) string { return fmt.Sprintf("%08d-0000-4000-8000-%012d", node, i) }

// recordOf a VM that runs on its node.
func recordOf(node, i, nodes int) *nodev1.Record {
	rec := &nodev1.Record{Vm: vmOf(node, i), Uid: uidOf(node, i), Owner: &nodev1.Owner{Node: nodeName(node)},
		Generation: firstGeneration}
	if node >= min(nodesWithDeletions, nodes) || i > 0 {
		return rec
	}
	for n := range deletionsOfNode + 1 {
		rec.Snapshots = append(rec.Snapshots, &nodev1.SnapshotRef{
			Digest: fmt.Sprintf("sha256:%032d%032d", node, n), Repository: repositoryBase + rec.GetUid(),
			Tag:  record.SnapshotTag(uint64(n), "seed", 0),
			Node: nodeName((node + makerOff) % nodes), CreatedUnixNano: int64(n + 1), Checkpoint: true,
		})
	}
	return rec
}

// ownAddress is where a node's connections come from: a port bounds what comes from one address
// before it has proven who it is, and nodes have each their own.
func ownAddress(node int) net.Addr {
	return &net.TCPAddr{IP: net.IPv4(127, 1, byte(node/250), byte(1+node%250))}
}

// pkiDir of a node, below the directory of the run.
func pkiDir(dir string, node int) string { return filepath.Join(dir, "pki", nodeName(node)) }
