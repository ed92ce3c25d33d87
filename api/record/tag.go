package record

import "fmt"

// SnapshotTag names the snapshot of an operation in its VM's repository. A move makes one in
// each attempt, which then is in the name; 0: there is but one.
func SnapshotTag(generation uint64, operation string, attempt uint32) string {
	tag := fmt.Sprintf("g%d-%s", generation, operation)
	if attempt > 0 {
		tag += fmt.Sprintf("-a%d", attempt)
	}
	return tag
}
