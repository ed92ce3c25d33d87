package seccomp

import (
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// Each word that is offered to a client compiles.
func TestOfferedWordsCompile(t *testing.T) {
	f := Features()
	compile := func(word string, s specs.LinuxSeccomp) {
		t.Helper()
		if _, err := Compile(&s); err != nil {
			t.Errorf("%s is offered: %v", word, err)
		}
	}
	for _, a := range f.Actions {
		compile(a, specs.LinuxSeccomp{DefaultAction: specs.LinuxSeccompAction(a)})
	}
	for _, a := range f.Archs {
		compile(a, specs.LinuxSeccomp{DefaultAction: specs.ActAllow, Architectures: []specs.Arch{specs.Arch(a)}})
	}
	for _, flag := range f.SupportedFlags {
		compile(flag, specs.LinuxSeccomp{DefaultAction: specs.ActAllow, Flags: []specs.LinuxSeccompFlag{
			specs.LinuxSeccompFlag(flag)}})
	}
	for _, op := range f.Operators {
		compile(op, specs.LinuxSeccomp{DefaultAction: specs.ActAllow, Syscalls: []specs.LinuxSyscall{{
			Names: []string{"read"}, Action: specs.ActErrno,
			Args: []specs.LinuxSeccompArg{{Op: specs.LinuxSeccompOperator(op), Value: 1, ValueTwo: 1}},
		}}})
	}
	for what, n := range map[string]int{"actions": len(f.Actions), "architectures": len(f.Archs),
		"flags": len(f.SupportedFlags), "operators": len(f.Operators)} {
		if n == 0 {
			t.Errorf("no %s are offered", what)
		}
	}
}
