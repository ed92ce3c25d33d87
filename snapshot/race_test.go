//go:build race

package snapshot

// raced says that the race detector looks: what is long, or weighs memory, is run without it, by
// `make integration`.
const raced = true
