package record

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// rest begins what stands in the place of a digest in a pending deletion that is for no single snapshot.
const rest = "rest:"

// RestOf names the deletion of everything that stands in a repository and is of the VM with that uid. Of a
// directory, which each node may have for itself, node is the one whose directory it is.
func RestOf(uid, node string) string {
	if node == "" {
		return rest + uid
	}
	sum := sha256.Sum256([]byte(node))
	return rest + uid + "-" + hex.EncodeToString(sum[:8])
}

// IsRest reports whether a digest is such a name. A build before takes it for a digest of an unknown
// kind, deletes nothing, and leaves the deletion to the controller.
func IsRest(digest string) bool { return strings.HasPrefix(digest, rest) }

// InLayout reports whether a repository is a directory of a node.
func InLayout(repository string) bool { return strings.HasPrefix(repository, layout) }

// MayHaveRest reports whether snapshots of a VM may stand in the store of which its record knows nothing.
func MayHaveRest(rec *nodev1.Record) bool { return rec.GetIncarnation() > 0 }
