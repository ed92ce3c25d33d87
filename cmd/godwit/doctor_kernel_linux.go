package main

import (
	"encoding/binary"
	"fmt"
	"os"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"godwit.dev/godwit/vmm/kvm"
)

// checkKernel looks at what VMs need of the kernel, and at what makes them fast.
func checkKernel() []finding {
	return []finding{checkKVM(kvm.Default), checkRights(), checkDevice("tap devices", "/dev/net/tun"), checkCgroup("/sys/fs/cgroup"), checkTracking()}
}

func checkKVM(host kvm.Host) finding {
	f := finding{Check: "kvm", OK: true, Detail: host.Device}
	if err := host.Missing(); err != nil {
		f.OK, f.Detail = false, err.Error()
		f.Remedy = "load kvm_intel or kvm_amd and allow " + host.Device + "; without KVM guests run ten times slower"
	}
	return f
}

// wanted are the capabilities that a node's programs use, by number.
var wanted = []struct {
	name string
	bit  uint
	why  string // what fails without it; empty: nothing runs
}{
	{"CAP_SYS_ADMIN", unix.CAP_SYS_ADMIN, ""},
	{"CAP_NET_ADMIN", unix.CAP_NET_ADMIN, ""},
	{"CAP_SYS_RESOURCE", unix.CAP_SYS_RESOURCE, "OOM scores cannot be lowered"},
	{"CAP_SYS_PTRACE", unix.CAP_SYS_PTRACE, "the RAM of a VMM cannot be tracked"},
}

// checkRights is about who asks: containerd and godwitd run as root.
func checkRights() finding {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return finding{Check: "capabilities", Fatal: true, Detail: err.Error(), Remedy: "run godwit doctor as root"}
	}
	return rights(uint64(data[1].Effective)<<32 | uint64(data[0].Effective))
}

func rights(effective uint64) finding {
	f := finding{Check: "capabilities", OK: true, Detail: "all that are needed"}
	var missing []string
	for _, c := range wanted {
		if effective&(1<<c.bit) != 0 {
			continue
		}
		f.OK, f.Fatal = false, f.Fatal || c.why == ""
		text := c.name
		if c.why != "" {
			text += " (" + c.why + ")"
		}
		missing = append(missing, text)
	}
	if !f.OK {
		f.Detail, f.Remedy = "missing: "+strings.Join(missing, ", "), "run as root, with these capabilities"
	}
	return f
}

func checkDevice(check, path string) finding {
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return finding{Check: check, Detail: err.Error(), Remedy: "load the module tun; without it VMs have no network"}
	}
	file.Close()
	return finding{Check: check, OK: true, Detail: path}
}

func checkCgroup(root string) finding {
	f := finding{Check: "cgroup", OK: true, Detail: "version 1"}
	if _, err := os.Stat(root + "/cgroup.controllers"); err == nil {
		f.Detail = "version 2"
	} else if _, err := os.Stat(root + "/memory"); err != nil {
		f.OK, f.Detail, f.Remedy = false, "no memory controller in "+root, "mount the cgroup hierarchy; without it RAM is not bounded"
	}
	return f
}

// checkTracking proves what the kernel says of a page that was written: which pages of a
// running VM changed can then be known without reading all of them.
func checkTracking() finding {
	f := finding{Check: "page tracking", OK: true, Detail: "soft-dirty"}
	if err := softDirty(); err != nil {
		f.Detail = "by content: " + err.Error() // every kernel has it
	}
	return f
}

const (
	pagemapSoftDirty = 1 << 55 // Documentation/admin-guide/mm/pagemap.rst
	clearSoftDirty   = "4"     // to clear_refs, proc(5)
)

// softDirty clears the bits of this process, writes one page of two and looks at both.
func softDirty() error {
	page := os.Getpagesize()
	mem, err := unix.Mmap(-1, 0, 2*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANONYMOUS|unix.MAP_POPULATE)
	if err != nil {
		return err
	}
	defer unix.Munmap(mem) //nolint:errcheck // nothing depends on it
	mem[0], mem[page] = 1, 1
	if err := os.WriteFile("/proc/self/clear_refs", []byte(clearSoftDirty), 0); err != nil {
		return err
	}
	mem[0] = 2
	bits, err := dirtyBits(mem, 2)
	if err != nil {
		return err
	}
	if !bits[0] || bits[1] {
		return fmt.Errorf("the kernel has no soft-dirty bits (CONFIG_MEM_SOFT_DIRTY)")
	}
	return nil
}

// dirtyBits are those of the first pages of a mapping.
func dirtyBits(mem []byte, pages int) ([]bool, error) {
	pagemap, err := os.Open("/proc/self/pagemap")
	if err != nil {
		return nil, err
	}
	defer pagemap.Close()
	entries := make([]byte, 8*pages)
	if _, err := pagemap.ReadAt(entries, int64(uintptr(unsafe.Pointer(&mem[0]))/uintptr(os.Getpagesize())*8)); err != nil {
		return nil, err
	}
	bits := make([]bool, pages)
	for i := range bits {
		bits[i] = binary.NativeEndian.Uint64(entries[8*i:])&pagemapSoftDirty != 0
	}
	return bits, nil
}
