//go:build !race

package engine

const defaultRuns = 10000

const raced = false
