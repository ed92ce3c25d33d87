package cloudhypervisor

import (
	"context"
	"errors"
	"path/filepath"

	"godwit.dev/godwit/vmm"
	"godwit.dev/godwit/vmm/cloudhypervisor/api/models"
	"godwit.dev/godwit/vmm/process"
)

// plan is how a VM is made: its configuration, derived field by field from vmm.Config
// and never from what a snapshot brings along, and the taps of its NICs.
type plan struct {
	vm       *models.VM
	incoming bool
	mapped   func(context.Context) error // vmm.Config.Mapped
	must     bool                        // mapped has to be called
	template bool                        // what it loads has no disks and no NICs
	hot      bool                        // it takes disks while it runs
	shown    []shown
	taps     []tap
	user     process.User
	err      error // of a tap that cannot be had
}

func (d *Driver) plan(cfg vmm.Config, f *files) *plan {
	p := &plan{incoming: cfg.Incoming, template: cfg.Template, user: f.user, hot: cfg.HotDisks, shown: f.shown}
	if cfg.Track != vmm.NoTracking {
		p.mapped, p.must = cfg.Mapped, cfg.Track == vmm.TrackPages
	}
	p.vm = &models.VM{
		Cpus:    &models.CPUs{BootVcpus: int64(cfg.VCPUs), MaxVcpus: int64(cfg.VCPUs), Nested: new(bool)},
		Memory:  &models.Memory{Zones: []*models.Zone{{ID: ramZone, Size: cfg.Memory, File: f.ram, Shared: true}}},
		Payload: payload(cfg, f),
		Rng:     &models.Rng{ID: "rng", Src: "/dev/urandom", PciDeviceID: rngSlot},
		Vsock: &models.Vsock{ID: "vsock", Cid: guestCID, Socket: filepath.Join(f.work, agentSocket),
			PciDeviceID: vsockSlot},
		// Of its standard output it knows no more than that: neither a file that it would
		// empty at each restore, nor input.
		Serial:  &models.Console{Mode: "Tty"},
		Console: &models.Console{Mode: "Off"},
		Pvpanic: true,
	}
	switch {
	case cfg.Serial != "":
		p.vm.Serial = &models.Console{Mode: "Socket", Socket: filepath.Join(f.work, serialSocket)}
	case cfg.Console == nil:
		p.vm.Serial.Mode = "Null"
	}
	p.vm.Cpus.KvmHyperv = cfg.HyperV
	for i, disk := range cfg.Disks {
		p.vm.Disks = append(p.vm.Disks, diskOf(disk, f.disks[i]))
	}
	if d.landlock() {
		p.vm.LandlockEnable = true
		p.vm.LandlockRules = []*models.LandlockRule{{Path: f.work, Access: "rw"}}
		if cfg.HotDisks && d.confined() {
			p.vm.LandlockRules = append(p.vm.LandlockRules, &models.LandlockRule{Path: process.HotDir, Access: "rw"})
		}
		if cfg.Template {
			p.vm.LandlockRules = append(p.vm.LandlockRules, rulesOf(p.vm.Disks)...)
		}
	}
	for _, nic := range cfg.NICs {
		t, err := holdTap(nic)
		if err != nil {
			p.err = errors.Join(p.err, err)
			continue
		}
		p.taps = append(p.taps, t)
		p.err = errors.Join(p.err, d.mtu(t.fd, nic.MTU))
	}
	return p
}

// payload names what is booted. A restored VM has its kernel in its RAM; what it would
// boot from after a reset is a name that nothing has.
func payload(cfg vmm.Config, f *files) *models.Payload {
	if f.firmware != "" {
		return &models.Payload{Firmware: f.firmware}
	}
	out := &models.Payload{Kernel: filepath.Join(f.work, kernelLink), Cmdline: cfg.Cmdline}
	if cfg.Initrd != "" {
		out.Initramfs = filepath.Join(f.work, initrdLink)
	}
	return out
}

// diskOf is a disk that the VMM opens at path. Its format is said: it is never looked for in what
// the guest writes.
func diskOf(disk vmm.Disk, path string) *models.Disk {
	d := &models.Disk{
		ID: diskID(disk.ID), Path: path, Readonly: disk.ReadOnly, Serial: disk.Serial, ImageType: "Raw",
		PciDeviceID: number(disk.Slot),
	}
	if slots.Hot(disk.Slot) {
		d.ID = hotID(disk)
	}
	return d
}

// rulesOf disks let the VMM open them after it is confined. It has such rules only for the disks that it is made with.
func rulesOf(disks []*models.Disk) (rules []*models.LandlockRule) {
	for _, d := range disks {
		access := "rw"
		if d.Readonly {
			access = "r"
		}
		rules = append(rules, &models.LandlockRule{Path: d.Path, Access: access})
	}
	return rules
}

// netOf is a NIC on a tap that goes with the request.
func netOf(nic vmm.NIC) *models.Net {
	return &models.Net{
		ID: nicID(nic.ID), Mac: nic.MAC, NumQueues: 2, PciDeviceID: int64(nic.Slot),
	}
}

// restored is the configuration of a VM to be restored with its NICs, and which
// descriptor is whose. A copy of a template has neither disks nor NICs yet.
func (p *plan) restored() (*models.VM, []*models.NetFDs, []int) {
	vm := *p.vm
	vm.Net = nil
	var owners []*models.NetFDs
	var fds []int
	if p.template {
		vm.Disks = nil
		return &vm, nil, nil
	}
	for _, t := range p.taps {
		n := netOf(t.nic)
		n.Fds = []int64{-1} // the number of descriptors counts, not their numbers
		vm.Net = append(vm.Net, n)
		owners = append(owners, &models.NetFDs{ID: n.ID, NumFds: 1})
		fds = append(fds, t.fd)
	}
	return &vm, owners, fds
}

// close lets go of the taps; it may be called again.
func (p *plan) close() error {
	var errs []error
	for _, t := range p.taps {
		errs = append(errs, t.close())
	}
	for _, s := range p.shown {
		errs = append(errs, s.file.Close())
	}
	p.taps, p.shown = nil, nil
	return errors.Join(errs...)
}

// ramZone is the one zone of RAM.
const ramZone = "ram"

// Prefixes keep the caller's ids apart from each other and from ours.
func diskID(id string) string { return "disk-" + id }
func nicID(id string) string  { return "nic-" + id }
