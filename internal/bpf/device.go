package bpf

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Device is a block device that a cgroup may open.
type Device struct {
	Major, Minor uint32
	ReadOnly     bool
}

// Of struct bpf_cgroup_dev_ctx: its fields, kinds and ways of access.
const (
	ctxAccess = 0 // kind in the lower half, ways in the upper
	ctxMajor  = 4
	ctxMinor  = 8

	kindBlock = 1
	wayRead   = 2
	wayWrite  = 4
)

// AllowBlockDevices lets processes of a cgroup v2 open these block devices and no others. Nodes of devices can be made
// as before, and other kinds of devices are not looked at. It is once for each cgroup.
func AllowBlockDevices(dir string, devices []Device) error {
	program, err := load(unix.BPF_PROG_TYPE_CGROUP_DEVICE, 0, blockDevices(devices))
	if err != nil {
		return fmt.Errorf("restrict devices of %s: %w", dir, err)
	}
	defer program.Close()
	group, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("restrict devices: %w", err)
	}
	defer group.Close()
	a := new(attr)
	a.u32(0, uint32(group.Fd()))
	a.u32(4, uint32(program.Fd()))
	a.u32(8, unix.BPF_CGROUP_DEVICE)
	// What is in the cgroup below may restrict itself further.
	a.u32(12, unix.BPF_F_ALLOW_MULTI)
	if _, err := bpf(unix.BPF_PROG_ATTACH, a); err != nil {
		return fmt.Errorf("restrict devices of %s: %w", dir, err)
	}
	return nil
}

// blockDevices answers 1 to what is allowed.
func blockDevices(devices []Device) []instruction {
	allow := []instruction{{code: moveImm, dst: 0, imm: 1}, {code: exit}}
	p := []instruction{
		{code: loadWord, dst: 2, src: 1, off: ctxAccess},
		{code: moveReg, dst: 3, src: 2},
		{code: andImm, dst: 2, imm: 0xffff},
		{code: jumpEq, dst: 2, imm: kindBlock, off: int16(len(allow))},
	}
	p = append(p, allow...)
	p = append(p,
		instruction{code: shiftR, dst: 3, imm: 16},
		instruction{code: andImm, dst: 3, imm: wayRead | wayWrite},
		instruction{code: jumpNotEq, dst: 3, imm: 0, off: int16(len(allow))}, // mknod
	)
	p = append(p, allow...)
	p = append(p,
		instruction{code: loadWord, dst: 4, src: 1, off: ctxMajor},
		instruction{code: loadWord, dst: 5, src: 1, off: ctxMinor},
	)
	for _, d := range devices {
		rule := allow
		if d.ReadOnly {
			rule = append([]instruction{{code: jumpNotEq, dst: 3, imm: wayRead, off: int16(len(allow))}}, allow...)
		}
		p = append(p,
			instruction{code: jumpNotEq, dst: 4, imm: int32(d.Major), off: int16(1 + len(rule))},
			instruction{code: jumpNotEq, dst: 5, imm: int32(d.Minor), off: int16(len(rule))},
		)
		p = append(p, rule...)
	}
	return append(p, instruction{code: moveImm, dst: 0, imm: 0}, instruction{code: exit})
}
