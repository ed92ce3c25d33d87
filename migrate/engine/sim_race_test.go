//go:build race

package engine

const defaultRuns = 500

const raced = true
