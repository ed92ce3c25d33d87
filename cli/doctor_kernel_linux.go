package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"godwit.dev/godwit/api/config"
	"godwit.dev/godwit/internal/bpf"
	"godwit.dev/godwit/shim/tracking"
	"godwit.dev/godwit/snapshot/track"
	"godwit.dev/godwit/vmm/kvm"
)

// checkKernel looks at what VMs need of the kernel, and at what makes them fast.
func checkKernel(ctx context.Context, cfg *config.Config) []finding {
	return []finding{checkKVM(kvm.Default), checkRights(), checkDevice(tunCheck, tunDevice),
		checkCgroup("/sys/fs/cgroup"), checkTracking(ctx, cfg.Worker.Tracking), checkLazy(ctx, cfg),
		checkForward(bpf.LoopbackFault())}
}

// checkForward is about port-forward of pods: without it they run, and say why in the shim's log alone.
func checkForward(fault error) finding {
	f := finding{Check: "port-forward", OK: true, Detail: "the kernel takes the BPF program"}
	if fault != nil {
		f.OK, f.Detail = false, "not for pods of this node: "+fault.Error()
		f.Remedy = "run godwit doctor and containerd as root, on Linux >= 5.9 with CONFIG_BPF_SYSCALL; pods run without it"
	}
	return f
}

func checkKVM(host kvm.Host) finding {
	f := finding{Check: kvmCheck, OK: true, Detail: host.Device}
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
		f.OK, f.Detail, f.Remedy = false, "no memory controller in "+root,
			"mount the cgroup hierarchy; without it RAM is not bounded"
	}
	return f
}

// prober has this program's own subcommand be the process that is tracked.
var prober = tracking.Prober{Command: []string{"/proc/self/exe", tracking.Subcommand}}

// checkTracking tries how the pages that a running VM changes can be found.
func checkTracking(ctx context.Context, wanted string) finding {
	choice := prober.Choose(ctx, wanted)
	f := finding{Check: "page tracking", OK: true, Detail: string(choice.Way)}
	if choice.Reason != "" {
		f.Detail += " (" + choice.Reason + ")"
	}
	if choice.Way == track.Content {
		f.OK = wanted == string(track.Content)
		f.Remedy = "use a kernel of 6.7 or later, as root: a VM is paused for longer where all of its pages must be compared"
	}
	if f.OK {
		f.Remedy = ""
	}
	return f
}

// checkLazy tries whether RAM can come while a VM runs, and says what that comes to for a wake. It is
// missed where it is an order.
func checkLazy(ctx context.Context, cfg *config.Config) finding {
	return lazyFinding(cfg.Worker.Restore, obstacleToLazy(ctx, cfg))
}

func lazyFinding(restore string, obstacle error) finding {
	f := finding{Check: "lazy restore", OK: true, Detail: "works, restore is " + restore}
	if obstacle != nil {
		f.OK, f.Detail = restore != config.RestoreLazy, obstacle.Error()+", restore is "+restore
	}
	switch {
	case !f.OK:
		f.Remedy = "set worker.restore to eager or auto; lazy wants a tmpfs, worker.tracking auto or uffd, and Linux 6.7 " +
			"or later on x86-64 with /dev/userfaultfd, as root"
	case restore == config.RestoreAuto && obstacle != nil:
		f.Detail += ": eager"
	case restore == config.RestoreAuto:
		f.Detail += fmt.Sprintf(": lazy for VMs of QEMU with %s of RAM or more in their snapshot, else eager",
			config.LazyFrom)
	}
	return f
}

// obstacleToLazy is what the node lacks; a shim looks at its VM as well.
func obstacleToLazy(ctx context.Context, cfg *config.Config) error {
	if cfg.RAMHugePages > 0 {
		return errors.New("RAM consists of huge pages (ram_huge_pages)")
	}
	if c := prober.Choose(ctx, cfg.Worker.Tracking); c.Way != track.UFFD {
		return fmt.Errorf("RAM is tracked by %s (worker.tracking), not by uffd", c.Way)
	}
	return tracking.Lazy{Prober: prober}.Probe(ctx)
}

// Tracked is the process whose pages checkTracking tracks.
func Tracked(args []string) bool {
	if len(args) == 0 || args[0] != tracking.Subcommand {
		return false
	}
	if err := tracking.Child(); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	return true
}
