package record

import (
	"strings"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// layout begins the repository of a snapshot that lies in a directory of a node.
const layout = "oci-layout:"

// Deleter is the node that does a pending deletion: of a directory the one that made the snapshot, for
// each node may have its own at that path; else the one that it names, or that made it.
// Empty: the controller does.
func Deleter(o *nodev1.Owed) string {
	made := o.GetSnapshot().GetNode()
	if o.GetPayer() == "" || made != "" && strings.HasPrefix(o.GetSnapshot().GetRepository(), layout) {
		return made
	}
	return o.GetPayer()
}
