package config

// When the RAM of a VM that wakes comes: values of worker.restore and of annotation
// godwit.dev/restore.
const (
	RestoreEager = "eager" // before the VM runs
	RestoreLazy  = "lazy"  // while it runs; where that cannot be the wake is refused
	RestoreAuto  = "auto"  // lazy where that can be and LazyFrom says so, else eager
)

// DefaultRestore holds where nobody has said anything.
const DefaultRestore = RestoreEager

// RestoreModes are all of them.
func RestoreModes() []string { return []string{RestoreEager, RestoreLazy, RestoreAuto} }

// LazyFrom is the RAM that a snapshot has to bring, in bytes, from which on RestoreAuto is lazy. A
// wake of less is about as fast if it is eager: of 217 MiB in use in 0.64 s, where a lazy one took
// 0.61 (docs/status.md, docs/decisions.md 102); and nothing of it depends on the registry afterwards.
const LazyFrom Size = 256 << 20
