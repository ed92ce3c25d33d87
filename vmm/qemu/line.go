package qemu

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"godwit.dev/godwit/vmm"
)

// DefaultMachine is the full name, never the alias: an alias means another machine in
// another version of QEMU, and device state fits one machine only.
const DefaultMachine = "pc-q35-7.2"

// opt joins name and key=value pairs as QEMU's option parser reads them.
func opt(first string, pairs ...string) string {
	var b strings.Builder
	b.WriteString(escape(first))
	for i := 0; i < len(pairs); i += 2 {
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		b.WriteString(pairs[i] + "=" + escape(pairs[i+1]))
	}
	return b.String()
}

func escape(s string) string { return strings.ReplaceAll(s, ",", ",,") }

// line is QEMU's command line. Its order and every addr= are the same on each node.
func (d *Driver) line(cfg vmm.Config, accel string, f *files) []string {
	machine, cpu := facts(cfg.Machine, cfg.CPU, accel)
	args := []string{
		d.Binary,
		"-no-user-config", "-nodefaults", "-display", "none", "-S",
		"-name", opt("", "guest", cfg.Name, "debug-threads", "on"),
		"-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny",
		// Core dumps and page merging would show the guest's memory to others.
		"-machine", opt(machine, append([]string{"memory-backend", "ram", "dump-guest-core", "off", "mem-merge", "off",
			"sata", "off", "smbus", "off", "vmport", "off"}, f.flashes()...)...),
		"-accel", accelerator(accel, cfg.VCPUs),
		"-cpu", Model(cpu, accel) + enlightenments(cfg, accel),
		"-smp", opt(strconv.Itoa(cfg.VCPUs), "sockets", "1", "cores", strconv.Itoa(cfg.VCPUs), "threads", "1"),
		"-m", opt("", "size", strconv.FormatUint(cfg.Memory>>20, 10)+"M"),
		"-object", opt("memory-backend-file", "id", "ram", "size", strconv.FormatUint(cfg.Memory, 10),
			"mem-path", f.ram, "share", "on"),
		"-rtc", "base=utc",
		// A panic is not a power-off.
		"-action", "reboot=" + onReset(cfg) + ",shutdown=poweroff,panic=exit-failure",
		"-device", "pvpanic",
		"-chardev", opt("socket", "id", "qmp", "fd", f.qmp, "server", "on", "wait", "off"),
		"-mon", "chardev=qmp,mode=control",
		"-chardev", opt("socket", "id", "agent", "fd", f.agent, "server", "on", "wait", "off"),
		"-device", opt("virtio-serial-pci", "id", "serial", "addr", addr(serialSlot), "disable-legacy", "on",
			"max_ports", "2"),
		"-device", "virtserialport,bus=serial.0,nr=1,chardev=agent,name=agent",
		"-object", "rng-random,id=rng,filename=/dev/urandom",
		"-device", opt("virtio-rng-pci", "rng", "rng", "addr", addr(rngSlot), "disable-legacy", "on"),
	}
	for _, dir := range filepath.SplitList(d.DataDir) {
		args = append(args, "-L", dir)
	}
	args = append(args, console(f)...)
	args = append(args, bootLine(cfg, f)...)
	args = append(args, f.sets...)
	args = append(args, f.flashLine()...)
	if cfg.HotDisks { // before the disks that are in them
		args = append(args, hotBridge()...)
	}
	for i, disk := range cfg.Disks {
		args = append(args, diskLine(disk, f.disks[i], cfg.Kernel == "" && (!cfg.Incoming || cfg.Reboots))...)
	}
	for slot := FirstNICSlot; slot <= LastNICSlot; slot++ {
		args = append(args, "-device", opt("pcie-root-port", "id", port(slot), "addr", addr(slot),
			"chassis", strconv.Itoa(slot), "slot", strconv.Itoa(slot)))
	}
	for i, nic := range cfg.NICs {
		args = append(args, nicLine(nic, f.taps[i])...)
	}
	return args
}

func bootLine(cfg vmm.Config, f *files) []string {
	var args []string
	if cfg.Incoming {
		args = []string{"-incoming", "defer"}
		if !cfg.Reboots {
			return args
		}
	}
	if f.kernel != "" {
		args = append(args, "-kernel", f.kernel, "-append", cfg.Cmdline)
	}
	if f.initrd != "" {
		args = append(args, "-initrd", f.initrd)
	}
	return args
}

// onReset says what a reset by the guest does. A VM whose host would not notice is not
// booted again.
func onReset(cfg vmm.Config) string {
	if cfg.Reboots {
		return "reset"
	}
	return "shutdown"
}

// enlightenments are those interfaces of Hyper-V that spare Windows the emulation of
// timers and interrupt controllers. QEMU has them with KVM alone.
func enlightenments(cfg vmm.Config, accel string) string {
	if !cfg.HyperV || accel == "tcg" {
		return ""
	}
	return ",hv-relaxed=on,hv-vapic=on,hv-spinlocks=0x1fff,hv-vpindex=on,hv-runtime=on,hv-synic=on,hv-stimer=on" +
		",hv-time=on,hv-frequencies=on,hv-tlbflush=on,hv-ipi=on"
}

// flashNodes are firmware and its variables, in the order of the flash chips.
var flashNodes = []string{"firmware", "nvram"}

func (f *files) flashes() (pairs []string) {
	for i := range f.flash {
		pairs = append(pairs, "pflash"+strconv.Itoa(i), flashNodes[i])
	}
	return pairs
}

func (f *files) flashLine() (args []string) {
	for i, path := range f.flash {
		readOnly := "on"
		if flashNodes[i] == "nvram" {
			readOnly = "off"
		}
		args = append(args, "-blockdev", opt("", "driver", "file", "node-name", flashNodes[i], "filename", path,
			"locking", "off", "drop-cache", "off", "read-only", readOnly, "auto-read-only", "off"))
	}
	return args
}

func console(f *files) []string {
	if f.serial != "" {
		return []string{
			"-chardev", opt("socket", "id", "console", "fd", f.serial, "server", "on", "wait", "off"),
			"-serial", "chardev:console",
		}
	}
	if f.console == "" {
		return []string{"-serial", "null"}
	}
	return []string{
		"-chardev", opt("file", "id", "console", "path", f.console, "append", "on"),
		"-serial", "chardev:console",
	}
}

func diskLine(disk vmm.Disk, source blockSource, bootable bool) []string {
	readOnly := "off"
	if disk.ReadOnly {
		readOnly = "on"
	}
	device := []string{"drive", diskID(disk.ID), "id", "dev-" + diskID(disk.ID), "addr", addr(disk.Slot)}
	if slots.Hot(disk.Slot) {
		device = []string{"drive", diskID(disk.ID), "id", hotID(disk.ID), "bus", hotBus, "addr", hotAddr(disk.Slot)}
	}
	device = append(device, "serial", disk.Serial, "disable-legacy", "on")
	if bootable {
		device = append(device, "bootindex", strconv.Itoa(disk.Slot))
	}
	// Locks would be taken on the open file description, which the caller shares and
	// the next incarnation on this node needs. The host's cache of a disk is right: no other
	// host writes to the file. QEMU would drop it whenever a VM whose state was saved or
	// loaded goes on, and wait for what of it is to be written.
	return []string{
		"-blockdev", opt("", "driver", source.driver, "node-name", diskID(disk.ID), "filename", source.path,
			"cache.direct", "off", "discard", "unmap", "aio", "threads", "locking", "off", "drop-cache", "off",
			"read-only", readOnly, "auto-read-only", "off"),
		"-device", opt("virtio-blk-pci", device...),
	}
}

func nicLine(nic vmm.NIC, fd string) []string {
	return []string{
		"-netdev", opt("tap", "id", tapID(nic.ID), "fd", fd, "vhost", "off"),
		// romfile empty: the boot ROM is a file that not every node has, and a block of
		// RAM in the device state. host_mtu: a guest with another MTU than its network
		// stalls.
		"-device", opt("virtio-net-pci", "id", nicID(nic.ID), "netdev", tapID(nic.ID), "bus", port(nic.Slot), "addr", "0",
			"mac", nic.MAC, "host_mtu", strconv.Itoa(nic.MTU), "romfile", ""),
	}
}

// Prefixes keep the caller's ids apart from each other and from ours.
func diskID(id string) string { return "disk-" + id }
func hotID(id string) string  { return "hot-" + id }
func nicID(id string) string  { return "nic-" + id }
func tapID(id string) string  { return "tap-" + id }
func port(slot int) string    { return "port" + strconv.Itoa(slot) }
func addr(slot int) string    { return fmt.Sprintf("0x%02x", slot) }

// facts fills in the defaults of machine and CPU model.
func facts(machine, cpu, accel string) (string, string) {
	if machine == "" {
		machine = DefaultMachine
	}
	if cpu == "" {
		cpu = "max"
		if accel == "kvm" {
			cpu = "host"
		}
	}
	return machine, cpu
}

// Model is the value of -cpu for a CPU model. Without KVM a string instruction costs as
// much for a byte as for eight, and a kernel that sees "fast" ones copies byte by byte:
// pipes and files are five times as fast without them. A guest that was booted with them
// goes on without.
func Model(cpu, accel string) string {
	if accel == "tcg" {
		return cpu + ",erms=off,fsrm=off"
	}
	return cpu
}

// accelerator is the value of -accel. Emulated CPUs take turns: where each has a thread of
// its own, two of them now and again run for ever without getting anywhere, on a busy host.
func accelerator(accel string, vcpus int) string {
	if accel != "tcg" {
		return accel
	}
	// Its cache of translated code is the VMM's own memory, charged to the task.
	value := "tcg,tb-size=" + strconv.Itoa(translated)
	if vcpus > 1 {
		value += ",thread=single"
	}
	return value
}

// translated is the size of that cache in MiB.
const translated = 256
