package seccomp

import (
	"encoding/binary"
	"math"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/contrib/seccomp"
	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"pgregory.net/rapid"
)

// data is a struct seccomp_data.
type data struct {
	nr, arch uint32
	args     [6]uint64
}

func (d data) word(offset uint32) uint32 {
	b := binary.LittleEndian.AppendUint32(nil, d.nr)
	b = binary.LittleEndian.AppendUint32(b, d.arch)
	b = binary.LittleEndian.AppendUint64(b, 0)
	for _, a := range d.args {
		b = binary.LittleEndian.AppendUint64(b, a)
	}
	return binary.LittleEndian.Uint32(b[offset:])
}

// run is the kernel's part.
func run(t interface{ Fatalf(string, ...any) }, program []byte, d data) uint32 {
	var a uint32
	for pc := 0; ; pc++ {
		if pc < 0 || 8*pc+8 > len(program) {
			t.Fatalf("jump out of the program: %d", pc)
		}
		i := program[8*pc:]
		op, jt, jf, k := binary.LittleEndian.Uint16(i), int(i[2]), int(i[3]), binary.LittleEndian.Uint32(i[4:])
		jump := func(taken bool) {
			if taken {
				pc += jt
			} else {
				pc += jf
			}
		}
		switch op {
		case bpfLoad:
			a = d.word(k)
		case bpfAnd:
			a &= k
		case bpfJump:
			pc += int(k)
		case bpfJeq:
			jump(a == k)
		case bpfJgt:
			jump(a > k)
		case bpfJge:
			jump(a >= k)
		case bpfRet:
			return k
		default:
			t.Fatalf("instruction %#x", op)
		}
	}
}

func compile(t *testing.T, s *specs.LinuxSeccomp) *Filter {
	t.Helper()
	f, err := Compile(s)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// containerd's own profile, which most clients send, says what it says.
func TestDefaultProfile(t *testing.T) {
	caps := &specs.Spec{Process: &specs.Process{Capabilities: &specs.LinuxCapabilities{Bounding: []string{"CAP_CHOWN"}}}}
	f := compile(t, seccomp.DefaultProfile(caps))
	if len(f.Notes) > 0 {
		t.Errorf("a name is unknown: %v", f.Notes)
	}
	n := table()
	call := func(arch int, name string, args ...uint64) data {
		d := data{nr: uint32(n[name][arch]), arch: []uint32{auditAMD64, auditI386}[arch]}
		copy(d.args[:], args)
		return d
	}
	deny := uint32(retErrno | eperm)
	for _, tt := range []struct {
		name string
		call data
		want uint32
	}{
		{"read", call(amd64, "read"), retAllow},
		{"read of 32 bits", call(i386, "read"), retAllow},
		{"mount", call(amd64, "mount"), deny},
		{"mount of 32 bits", call(i386, "mount"), deny},
		{"keyctl", call(amd64, "keyctl"), deny},
		{"thread", call(amd64, "clone", 0x003d0f00), retAllow},
		{"namespace", call(amd64, "clone", 0x10000000), deny},
		{"clone3", call(amd64, "clone3"), retErrno | enosys},
		{"personality", call(amd64, "personality", 8), retAllow},
		{"other personality", call(amd64, "personality", 1), deny},
		{"TCP socket", call(amd64, "socket", 2), retAllow},
		{"vsock socket", call(amd64, "socket", 40), deny},
		{"younger than the profile", data{nr: 900, arch: auditAMD64}, retErrno | enosys},
		{"x32", data{nr: x32Bit | 1, arch: auditAMD64}, retErrno | enosys},
		{"no call", data{nr: math.MaxUint32, arch: auditI386}, retErrno | enosys},
		{"arm64", data{nr: 0, arch: 0xc00000b7}, retKillThread},
	} {
		if got := run(t, f.Program, tt.call); got != tt.want {
			t.Errorf("%s: %#x, want %#x", tt.name, got, tt.want)
		}
	}
	if n := len(f.Program) / 8; n > 800 {
		t.Errorf("%d instructions", n)
	}
}

// A profile without architectures is for the kernel's own.
func TestForeignCallsEndTheThread(t *testing.T) {
	f := compile(t, &specs.LinuxSeccomp{DefaultAction: specs.ActAllow})
	for _, d := range []data{{nr: 3, arch: auditI386}, {nr: x32Bit, arch: auditAMD64}} {
		if got := run(t, f.Program, d); got != retKillThread {
			t.Errorf("%+v: %#x", d, got)
		}
	}
	if got := run(t, f.Program, data{nr: 900, arch: auditAMD64}); got != retAllow {
		t.Errorf("an unknown call under a permissive default: %#x", got)
	}
}

// What is forbidden is forbidden on the second way of i386 too.
func TestMultiplexed(t *testing.T) {
	f := compile(t, &specs.LinuxSeccomp{
		DefaultAction: specs.ActAllow, Architectures: []specs.Arch{specs.ArchX86},
		Syscalls: []specs.LinuxSyscall{
			{Names: []string{"connect", "shmat"}, Action: specs.ActErrno},
			{Names: []string{"socket"}, Action: specs.ActKillProcess,
				Args: []specs.LinuxSeccompArg{{Op: specs.OpEqualTo, Value: 40}}},
		},
	})
	mux := func(name string, op uint64) uint32 {
		return run(t, f.Program, data{nr: uint32(table()[name][i386]), arch: auditI386, args: [6]uint64{op}})
	}
	for _, got := range [][2]uint32{
		{mux("socketcall", 3), retErrno | eperm}, {mux("socketcall", 2), retAllow}, {mux("socketcall", 1), retKillProcess},
		{mux("ipc", 1<<16|21), retErrno | eperm}, {mux("ipc", 22), retAllow},
	} {
		if got[0] != got[1] {
			t.Errorf("%#x, want %#x", got[0], got[1])
		}
	}
}

// Every comparison of every pair of words is that of the numbers.
func TestConditions(t *testing.T) {
	holds := map[specs.LinuxSeccompOperator]func(a, v, w uint64) bool{
		specs.OpEqualTo:      func(a, v, _ uint64) bool { return a == v },
		specs.OpNotEqual:     func(a, v, _ uint64) bool { return a != v },
		specs.OpGreaterThan:  func(a, v, _ uint64) bool { return a > v },
		specs.OpGreaterEqual: func(a, v, _ uint64) bool { return a >= v },
		specs.OpLessThan:     func(a, v, _ uint64) bool { return a < v },
		specs.OpLessEqual:    func(a, v, _ uint64) bool { return a <= v },
		specs.OpMaskedEqual:  func(a, v, w uint64) bool { return a&v == w },
	}
	word := rapid.OneOf(rapid.Uint64(), rapid.SampledFrom([]uint64{0, 1, 1 << 31, 1 << 32, 1<<32 | 1, math.MaxUint32,
		math.MaxUint64, 1 << 63}))
	for op, want := range holds {
		t.Run(string(op), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				a, v, w := word.Draw(t, "argument"), word.Draw(t, "value"), word.Draw(t, "two")
				index := rapid.UintRange(0, 5).Draw(t, "index")
				if op == specs.OpMaskedEqual {
					w &= v
				}
				f, err := Compile(&specs.LinuxSeccomp{
					DefaultAction: specs.ActKillProcess, Architectures: []specs.Arch{specs.ArchX86},
					Syscalls: []specs.LinuxSyscall{{Names: []string{"ioctl"}, Action: specs.ActLog,
						Args: []specs.LinuxSeccompArg{{Index: index, Op: op, Value: v, ValueTwo: w}}}},
				})
				if err != nil {
					t.Fatal(err)
				}
				check := func(arch int, id uint32, a, v, w uint64) {
					d := data{nr: uint32(table()["ioctl"][arch]), arch: id}
					d.args[index] = a
					expect := uint32(retKillProcess)
					if want(a, v, w) {
						expect = retLog
					}
					if got := run(t, f.Program, d); got != expect {
						t.Fatalf("%#x %s %#x, %#x on %#x: %#x", a, op, v, w, id, got)
					}
				}
				check(amd64, auditAMD64, a, v, w)
				check(i386, auditI386, a&math.MaxUint32, v&math.MaxUint32, w&math.MaxUint32)
			})
		})
	}
}

// What libseccomp's filters answer to the same rules, added as runc adds them.
func TestOrderOfRules(t *testing.T) {
	arg := func(index uint, v uint64) specs.LinuxSeccompArg {
		return specs.LinuxSeccompArg{Index: index, Op: specs.OpEqualTo, Value: v}
	}
	two := uint(2)
	f := compile(t, &specs.LinuxSeccomp{DefaultAction: specs.ActErrno, Syscalls: []specs.LinuxSyscall{
		{Names: []string{"ioctl"}, Action: specs.ActAllow},
		{Names: []string{"ioctl"}, Action: specs.ActErrno, ErrnoRet: &two, Args: []specs.LinuxSeccompArg{arg(0, 1),
			arg(1, 7)}},
		{Names: []string{"fcntl"}, Action: specs.ActAllow, Args: []specs.LinuxSeccompArg{arg(1, 3), arg(1, 4)}}, // either
		{Names: []string{"futex"}, Action: specs.ActTrap},
		{Names: []string{"futex"}, Action: specs.ActKill},
		{Names: []string{"kill"}, Action: specs.ActAllow, Args: []specs.LinuxSeccompArg{arg(0, 1)}},
		{Names: []string{"kill"}, Action: specs.ActErrno, ErrnoRet: &two},
		// as by default
		{Names: []string{"dup", "frobnicate"}, Action: specs.ActErrno, Args: []specs.LinuxSeccompArg{arg(0, 1)}},
		{Names: []string{"dup"}, Action: specs.ActAllow},
		{Names: []string{"tkill"}, Action: specs.ActErrno},
		{Names: []string{"tkill"}, Action: specs.ActAllow, Args: []specs.LinuxSeccompArg{arg(0, 1)}},
	}})
	for _, tt := range []struct {
		name string
		args [6]uint64
		want uint32
	}{
		{"ioctl", [6]uint64{1, 7}, retAllow}, // the rule without conditions covers it
		{"ioctl", [6]uint64{1, 8}, retAllow},
		{"ioctl", [6]uint64{0, 7}, retAllow},
		{"fcntl", [6]uint64{0, 3}, retAllow},
		{"fcntl", [6]uint64{0, 4}, retAllow},
		{"fcntl", [6]uint64{0, 5}, retErrno | eperm},
		{"futex", [6]uint64{}, retTrap},
		{"kill", [6]uint64{1}, retErrno | 2},
		{"dup", [6]uint64{1}, retAllow},
		{"tkill", [6]uint64{1}, retAllow},
		{"tkill", [6]uint64{2}, retErrno | eperm},
	} {
		if got := run(t, f.Program, data{nr: uint32(table()[tt.name][amd64]), arch: auditAMD64,
			args: tt.args}); got != tt.want {
			t.Errorf("%s%v: %#x, want %#x", tt.name, tt.args, got, tt.want)
		}
	}
}

func TestRefused(t *testing.T) {
	huge := uint(5000)
	call := func(c specs.LinuxSyscall) *specs.LinuxSeccomp {
		if c.Names == nil {
			c.Names = []string{"read"}
		}
		if c.Action == "" {
			c.Action = specs.ActAllow
		}
		return &specs.LinuxSeccomp{DefaultAction: specs.ActErrno,
			Syscalls: []specs.LinuxSyscall{{Names: []string{"write"}, Action: specs.ActAllow}, c}}
	}
	args := func(a ...specs.LinuxSeccompArg) *specs.LinuxSeccomp { return call(specs.LinuxSyscall{Args: a}) }
	many := call(specs.LinuxSyscall{})
	for i := range 1500 {
		many.Syscalls = append(many.Syscalls, specs.LinuxSyscall{Names: []string{"ioctl"}, Action: specs.ActAllow,
			Args: []specs.LinuxSeccompArg{{Op: specs.OpEqualTo, Value: uint64(i)}}})
	}
	for _, tt := range []struct {
		name    string
		profile *specs.LinuxSeccomp
		is      func(error) bool
		want    string
	}{
		{"no action", &specs.LinuxSeccomp{}, errdefs.IsInvalidArgument, "linux.seccomp.defaultAction"},
		{"unknown action", call(specs.LinuxSyscall{Action: "SCMP_ACT_MAYBE"}), errdefs.IsInvalidArgument,
			"linux.seccomp.syscalls[1].action"},
		{"listener", &specs.LinuxSeccomp{DefaultAction: specs.ActAllow, ListenerPath: "/run/x"}, errdefs.IsNotImplemented,
			"linux.seccomp.listenerPath"},
		{"notify", call(specs.LinuxSyscall{Action: specs.ActNotify}), errdefs.IsNotImplemented, "SCMP_ACT_NOTIFY"},
		{"errno", call(specs.LinuxSyscall{Action: specs.ActErrno, ErrnoRet: &huge}), errdefs.IsInvalidArgument, "5000"},
		{"errno of allow", call(specs.LinuxSyscall{ErrnoRet: new(uint)}), errdefs.IsInvalidArgument, "takes no errno"},
		{"flag", &specs.LinuxSeccomp{DefaultAction: specs.ActAllow, Flags: []specs.LinuxSeccompFlag{"X"}},
			errdefs.IsInvalidArgument, "linux.seccomp.flags"},
		{"listener's flag", &specs.LinuxSeccomp{DefaultAction: specs.ActAllow,
			Flags: []specs.LinuxSeccompFlag{specs.LinuxSeccompFlagWaitKillableRecv}}, errdefs.IsNotImplemented,
			"linux.seccomp.flags"},
		{"architecture", &specs.LinuxSeccomp{DefaultAction: specs.ActAllow, Architectures: []specs.Arch{"SCMP_ARCH_Z80"}},
			errdefs.IsInvalidArgument, "Z80"},
		{"no names", call(specs.LinuxSyscall{Names: []string{}}), errdefs.IsInvalidArgument,
			"linux.seccomp.syscalls[1].names"},
		{"unknown call that is forbidden", call(specs.LinuxSyscall{Names: []string{"frobnicate"}, Action: specs.ActKill}),
			errdefs.IsInvalidArgument, `"frobnicate"`},
		{"operator", args(specs.LinuxSeccompArg{Op: "SCMP_CMP_X"}), errdefs.IsInvalidArgument,
			"linux.seccomp.syscalls[1].args[0].op"},
		{"index", args(specs.LinuxSeccompArg{Op: specs.OpEqualTo, Index: 6}), errdefs.IsInvalidArgument, "args[0].index"},
		{"mask", args(specs.LinuxSeccompArg{Op: specs.OpMaskedEqual, Value: 1, ValueTwo: 3}), errdefs.IsInvalidArgument,
			"never leaves"},
		{"too large", many, errdefs.IsResourceExhausted, "4096"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := Compile(tt.profile); !tt.is(err) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Compile = %v, want its class and %q", err, tt.want)
			}
		})
	}
	f := compile(t, call(specs.LinuxSyscall{Names: []string{"frobnicate"}}))
	if len(f.Notes) != 1 || !strings.Contains(f.Notes[0], "frobnicate") {
		t.Errorf("an unknown call that stays forbidden: notes %q", f.Notes)
	}
}
