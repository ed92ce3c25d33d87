package seccomp

import (
	"maps"
	"slices"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/opencontainers/runtime-spec/specs-go/features"
)

// What Compile takes. A test compiles each.
var (
	actions = []specs.LinuxSeccompAction{specs.ActAllow, specs.ActErrno, specs.ActKill, specs.ActKillProcess,
		specs.ActKillThread, specs.ActLog, specs.ActTrace, specs.ActTrap}
	archs     = []specs.Arch{specs.ArchX86, specs.ArchX86_64, specs.ArchX32}
	flagNames = []specs.LinuxSeccompFlag{specs.LinuxSeccompFlagLog, specs.LinuxSeccompFlagSpecAllow,
		"SECCOMP_FILTER_FLAG_TSYNC"}
)

// Features are the profiles that Compile takes, in the words of the OCI runtime spec.
func Features() *features.Seccomp {
	enabled := true
	return &features.Seccomp{
		Enabled: &enabled, Actions: words(actions), Operators: words(slices.Sorted(maps.Keys(operators))),
		Archs: words(archs), KnownFlags: words(flagNames), SupportedFlags: words(flagNames),
	}
}

func words[W ~string](list []W) (all []string) {
	for _, w := range list {
		all = append(all, string(w))
	}
	return all
}
