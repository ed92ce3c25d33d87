//go:build !race

package snapshot

const raced = false
