package shim

import (
	digest "github.com/opencontainers/go-digest"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/snapshot"
	"godwit.dev/godwit/snapshot/golden"
	"godwit.dev/godwit/snapshot/worker"
)

// openGolden opens the table that godwitd has made of a golden snapshot; without it the
// snapshot is larger, no more.
func (p *pushing) openGolden(req *machinev1.CaptureRequest) *worker.File {
	vm := p.vm
	d := digest.Digest(req.GetGolden())
	if d == "" || req.GetMake() != nil {
		return nil
	}
	if err := d.Validate(); err != nil {
		vm.log.Warn("golden snapshot is not used", "digest", d, "reason", err)
		return nil
	}
	table, err := golden.TablesOf(vm.host.Config).Open(d.Encoded())
	if err != nil {
		vm.log.Warn("golden snapshot is not used", "digest", d, "reason", err)
		return nil
	}
	p.files.keep(table) // it is leased until the push is over
	return worker.Open(table.File)
}

// isGolden reports whether a golden snapshot is made of the VM. No record has that operation: a controller would take
// it for one that is over, and end it. The maker ends it, or the bound of the capture.
func (c *capture) isGolden() bool { return c != nil && c.req.GetMake() != nil }

// goldenOf is what a golden snapshot of this VM is found by.
func goldenOf(req *machinev1.CaptureRequest, s *spec.Spec) *snapshot.GoldenInfo {
	m := req.GetMake()
	if m == nil {
		return nil
	}
	return &snapshot.GoldenInfo{
		Image: digest.Digest(m.GetImage()), Name: m.GetName(),
		VMM: s.VMM.Name, Kernel: s.Kernel.Digest, Memory: s.Memory, VCPUs: s.VCPUs,
	}
}
