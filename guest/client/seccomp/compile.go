package seccomp

import (
	"fmt"
	"slices"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// Filter is what the kernel takes.
type Filter struct {
	// Program is an array of struct sock_filter, little-endian.
	Program []byte
	Flags   uint32 // of seccomp(2)
	// Notes name the rules that say nothing on this kernel.
	Notes []string
}

// The filter's answers to a call. The lower half of some carries a number.
const (
	retKillThread  = 0x00000000
	retTrap        = 0x00030000
	retErrno       = 0x00050000
	retTrace       = 0x7ff00000
	retLog         = 0x7ffc0000
	retAllow       = 0x7fff0000
	retKillProcess = 0x80000000
)

const (
	eperm  = 1
	enosys = 38
	// maxErrno is the kernel's; a larger one would be cut to it.
	maxErrno = 4095
)

const (
	amd64 = iota
	i386
)

// rule of one system call. Its conditions must all hold.
type rule struct {
	when []condition
	ret  uint32
}

// profile is a LinuxSeccomp taken apart: the rules of each call of each architecture.
type profile struct {
	fallback uint32
	arch     [2]bool
	x32      bool
	rules    [2]map[int][]rule
	highest  [2]int // the last call that any rule names
	notes    []string
}

// Compile refuses what it cannot honour, with the field's name below linux.seccomp.
// Where several rules fit a call, it is as runc and libseccomp have it: one whose answer
// is the default's says nothing, one without conditions on arguments goes before those
// with, and then the one that stands first.
func Compile(s *specs.LinuxSeccomp) (*Filter, error) {
	if s.ListenerPath != "" || s.ListenerMetadata != "" {
		return nil, fmt.Errorf("linux.seccomp.listenerPath, listenerMetadata: a listener on the host cannot serve a "+
			"guest's calls: leave it out: %w", errdefs.ErrNotImplemented)
	}
	p := &profile{highest: [2]int{-1, -1}}
	for i := range p.rules {
		p.rules[i] = make(map[int][]rule)
	}
	var err error
	if p.fallback, err = answer("linux.seccomp.defaultAction", s.DefaultAction, s.DefaultErrnoRet); err != nil {
		return nil, err
	}
	flags, err := readFlags(s.Flags)
	if err != nil {
		return nil, err
	}
	if err := p.architectures(s.Architectures); err != nil {
		return nil, err
	}
	for i, call := range s.Syscalls {
		if err := p.add(fmt.Sprintf("linux.seccomp.syscalls[%d]", i), call); err != nil {
			return nil, err
		}
	}
	program, err := p.assemble()
	if err != nil {
		return nil, err
	}
	return &Filter{Program: program, Flags: flags, Notes: p.notes}, nil
}

func invalid(field, format string, args ...any) error {
	return fmt.Errorf("%s: %s: %w", field, fmt.Sprintf(format, args...), errdefs.ErrInvalidArgument)
}

// answer of the filter for an action.
func answer(field string, action specs.LinuxSeccompAction, number *uint) (uint32, error) {
	data := uint32(eperm)
	if number != nil {
		if *number > maxErrno {
			return 0, invalid(field, "errno %d is above %d, the kernel's last", *number, maxErrno)
		}
		data = uint32(*number)
	}
	switch action {
	case specs.ActErrno:
		return retErrno | data, nil
	case specs.ActTrace:
		return retTrace | data, nil
	}
	if number != nil {
		return 0, invalid(field, "%s takes no errno", action)
	}
	switch action {
	case specs.ActKill, specs.ActKillThread:
		return retKillThread, nil
	case specs.ActKillProcess:
		return retKillProcess, nil
	case specs.ActTrap:
		return retTrap, nil
	case specs.ActAllow:
		return retAllow, nil
	case specs.ActLog:
		return retLog, nil
	case specs.ActNotify:
		return 0, fmt.Errorf("%s: %s: a listener on the host cannot serve a guest's calls: %w", field, action,
			errdefs.ErrNotImplemented)
	}
	return 0, invalid(field, "unknown action %q", action)
}

// permissive reports whether a call with that answer goes on.
func permissive(ret uint32) bool { return ret == retAllow || ret == retLog }

func readFlags(names []specs.LinuxSeccompFlag) (flags uint32, err error) {
	for _, name := range names {
		switch name {
		case specs.LinuxSeccompFlagLog:
			flags |= 1 << 1
		case specs.LinuxSeccompFlagSpecAllow:
			flags |= 1 << 2
		case "SECCOMP_FILTER_FLAG_TSYNC": // the process has one thread when it begins
		case specs.LinuxSeccompFlagWaitKillableRecv:
			return 0, fmt.Errorf("linux.seccomp.flags: %s is for listeners, which a guest has none of: %w", name,
				errdefs.ErrNotImplemented)
		default:
			return 0, invalid("linux.seccomp.flags", "unknown flag %q", name)
		}
	}
	return flags, nil
}

// foreign architectures send no call to the guest's kernel: rules for them never hold.
var foreign = []specs.Arch{
	specs.ArchARM, specs.ArchAARCH64, specs.ArchMIPS, specs.ArchMIPS64, specs.ArchMIPS64N32, specs.ArchMIPSEL,
	specs.ArchMIPSEL64, specs.ArchMIPSEL64N32, specs.ArchPPC, specs.ArchPPC64, specs.ArchPPC64LE, specs.ArchS390,
	specs.ArchS390X, specs.ArchPARISC, specs.ArchPARISC64, specs.ArchRISCV64, specs.ArchLOONGARCH64, specs.ArchM68K,
	specs.ArchSH, specs.ArchSHEB,
}

// architectures notes which may call. The kernel's own always may; calls of one that
// is not named end the thread.
func (p *profile) architectures(names []specs.Arch) error {
	p.arch[amd64] = true
	for _, name := range names {
		switch {
		case name == specs.ArchX86_64:
		case name == specs.ArchX86:
			p.arch[i386] = true
		case name == specs.ArchX32:
			p.x32 = true
		case !slices.Contains(foreign, name):
			return invalid("linux.seccomp.architectures", "unknown architecture %q", name)
		}
	}
	return nil
}

func (p *profile) add(field string, call specs.LinuxSyscall) error {
	if len(call.Names) == 0 {
		return invalid(field+".names", "it is empty")
	}
	ret, err := answer(field+".action", call.Action, call.ErrnoRet)
	if err != nil {
		return err
	}
	alternatives, err := conditions(field, call.Args)
	if err != nil {
		return err
	}
	for _, name := range call.Names {
		n, known := table()[name]
		switch {
		case known, ret == p.fallback:
		case permissive(ret) && !permissive(p.fallback):
			p.notes = append(p.notes, "seccomp: system call "+name+" is unknown, and so it stays forbidden")
		default:
			return invalid(field+".names", "unknown system call %q, which cannot be given %s: leave it out", name, call.Action)
		}
		for _, when := range alternatives {
			if known && n[amd64] >= 0 {
				p.put(amd64, n[amd64], rule{when, ret})
			}
			if known && n[i386] >= 0 {
				p.put(i386, n[i386], rule{when, ret})
			}
			p.multiplex(name, rule{when, ret})
		}
	}
	return nil
}

func (p *profile) put(arch, nr int, r rule) {
	p.highest[arch] = max(p.highest[arch], nr)
	if r.ret != p.fallback {
		p.rules[arch][nr] = append(p.rules[arch][nr], r)
	}
}

// multiplex gives a rule to the call's second way. The arguments lie in memory there,
// where a filter cannot look: a rule with conditions that permits is left out, and one
// that forbids holds whatever they are.
func (p *profile) multiplex(name string, r rule) {
	nr, c, ok := multiplexed(name)
	if !ok || len(r.when) > 0 && permissive(r.ret) {
		return
	}
	p.put(i386, nr, rule{[]condition{c}, r.ret})
}

// conditions of a rule, as alternatives: conditions on different arguments must all
// hold, several on one argument are one alternative each, as runc has it.
func conditions(field string, args []specs.LinuxSeccompArg) ([][]condition, error) {
	var all []condition
	seen, repeated := map[uint]bool{}, false
	for i, a := range args {
		name := fmt.Sprintf("%s.args[%d]", field, i)
		op, ok := operators[a.Op]
		switch {
		case !ok:
			return nil, invalid(name+".op", "unknown operator %q", a.Op)
		case a.Index > 5:
			return nil, invalid(name+".index", "%d: a system call has arguments 0 to 5", a.Index)
		case op == opMasked && a.ValueTwo&^a.Value != 0:
			return nil, invalid(name, "mask %#x never leaves %#x", a.Value, a.ValueTwo)
		}
		repeated = repeated || seen[a.Index]
		seen[a.Index] = true
		all = append(all, condition{index: a.Index, op: op, value: a.Value, two: a.ValueTwo})
	}
	if !repeated {
		return [][]condition{all}, nil
	}
	var alternatives [][]condition
	for _, c := range all {
		alternatives = append(alternatives, []condition{c})
	}
	return alternatives, nil
}

var operators = map[specs.LinuxSeccompOperator]operator{
	specs.OpEqualTo: opEqual, specs.OpNotEqual: opNotEqual, specs.OpGreaterThan: opGreater,
	specs.OpGreaterEqual: opGreaterEqual, specs.OpLessThan: opLess, specs.OpLessEqual: opLessEqual,
	specs.OpMaskedEqual: opMasked,
}
