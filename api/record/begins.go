package record

import (
	"fmt"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Begins reports whether a VM is to begin from a snapshot of another one, and has not: it is never booted.
func Begins(rec *nodev1.Record) bool {
	return rec.GetRestoreFrom() != nil && !rec.GetRestoreFrom().GetBegun()
}

// BeginsText says why such a VM does not boot.
func BeginsText(rec *nodev1.Record) string {
	from := rec.GetRestoreFrom()
	return fmt.Sprintf("it begins from snapshot %s of VM %s/%s, and not from its image", from.GetOperation(),
		from.GetVm().GetNamespace(), from.GetVm().GetId())
}

// OriginOf is the VM that the manifest of a snapshot in a VM's record has to name, where that is another one. nil: it
// is the VM itself.
func OriginOf(rec *nodev1.Record, digest string) *nodev1.Origin {
	for _, ref := range rec.GetSnapshots() {
		if ref.GetOrigin() != nil && ref.GetDigest() == digest {
			return ref.GetOrigin()
		}
	}
	return nil
}
