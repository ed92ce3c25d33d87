package record

import (
	"strings"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// layout begins the repository of a snapshot that lies in a directory of a node.
const layout = "oci-layout:"

// Deleter is the node that does a pending deletion. Of a directory it is the one that made the
// snapshot, for each node may have its own at that path. Else it is the node that the deletion
// names, or that made the snapshot. Empty: the controller does.
func Deleter(o *nodev1.Owed) string {
	made := o.GetSnapshot().GetNode()
	if o.GetPayer() == "" || made != "" && strings.HasPrefix(o.GetSnapshot().GetRepository(), layout) {
		return made
	}
	return o.GetPayer()
}
