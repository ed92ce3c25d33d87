//go:build !linux

package cli

import (
	"context"

	"godwit.dev/godwit/api/config"
)

// checkHost has nothing to look at: VMs run on Linux, and this is a client only.
func checkHost(context.Context, *config.Config) []finding {
	return []finding{{Check: "host", Detail: "this system runs no VMs", Remedy: "ask a node with --socket"}}
}

func checkKernel(context.Context, *config.Config) []finding { return nil }

func checkFiles(*config.Config) []finding { return nil }

// newHost knows no repair.
func newHost(*options) repairer { return elsewhere{} }

type elsewhere struct{}

func (elsewhere) repair(string) *repair { return nil }

func Tracked([]string) bool { return false }
