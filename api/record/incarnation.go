package record

import nodev1 "godwit.dev/godwit/api/node/v1"

// bits of a generation count owners within an incarnation of the store. Incarnations are seconds,
// so that an owner a microsecond would have to claim a VM before two of them meet.
const bits = 20

// MaxIncarnation is the last one that fits: a record's generation has 53 bits, as a number of
// JSON has.
const MaxIncarnation = 1<<33 - 1

// Floor is the least generation that a record gets under an incarnation of the store: every one
// that was given under an earlier incarnation is below it. 0: a store that was never put back.
func Floor(incarnation uint64) uint64 { return incarnation << bits }

// Lifted is generation as a number of an incarnation: itself, if it was given under that one.
func Lifted(generation, incarnation uint64) uint64 {
	if floor := Floor(incarnation); generation < floor {
		return floor + generation%(1<<bits)
	}
	return generation
}

// After is the generation of the next owner. The owner that runs the VM while the store is put
// back keeps its own generation, which its journal has. From the next owner on they are lifted.
func After(generation, incarnation uint64) uint64 { return Lifted(generation, incarnation) + 1 }

// Follows reports whether rec has the owner that was made next after generation.
func Follows(rec *nodev1.Record, generation uint64) bool {
	return rec.GetGeneration() == After(generation, rec.GetIncarnation())
}

// Predates reports whether a claim under generation was made before the store was put back last:
// whatever its number, what the record says of it by now is newer.
func Predates(rec *nodev1.Record, generation uint64) bool {
	return generation < Floor(rec.GetIncarnation())
}

// Unknown reports whether a snapshot of that generation may have been made since the copy was. Then the record may not
// know it. A node that had the VM went on under the generation of the copy.
func Unknown(rec *nodev1.Record, generation uint64) bool {
	return generation >= rec.GetKnown() && generation < Floor(rec.GetIncarnation())
}

// Newer reports whether a node that has the VM under generation has it since after rec: each owner has
// a generation of its own, which the record has before the node.
func Newer(rec *nodev1.Record, node string, generation uint64) bool {
	return generation > rec.GetGeneration() || generation == rec.GetGeneration() && generation > 0 &&
		rec.GetOwner().GetNode() != node
}
