package config

// When the RAM of a VM that wakes comes: values of worker.restore and of annotation
// godwit.dev/restore.
const (
	RestoreEager = "eager" // before the VM runs
	RestoreLazy  = "lazy"  // while it runs; where that cannot be the wake is refused
	RestoreAuto  = "auto"  // lazy where that can be and LazyFrom says so, else eager
)

// RestoreModes are all of them.
func RestoreModes() []string { return []string{RestoreEager, RestoreLazy, RestoreAuto} }

// LazyFrom is the RAM that a snapshot has to bring, in bytes, from which on RestoreAuto is lazy.
// To bring less before the VM runs costs its wake at most 0.2 s, with a registry nearby
// (docs/dev/adr/0022-lazy-wake.md). The VM then depends on the registry for nothing.
const LazyFrom Size = 256 << 20
