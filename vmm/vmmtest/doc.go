// Package vmmtest is the suite that every implementation of vmm.Driver passes: a list of
// clauses. Each starts its own VM with a guest made for it, and returns an error that says what
// was wrong. The suite's own test runs each clause against a driver with the one wrong answer
// that it is there for.
package vmmtest

import (
	"context"
	"os"
	"testing"
	"time"

	"godwit.dev/godwit/vmm"
)

// Env is what a VMM is tested with.
type Env struct {
	Driver vmm.Driver
	// Destination is what restores elsewhere are done with; nil: Driver.
	Destination vmm.Driver
	CPU         string // vmm.Config's
	Kernel      string
	Initrd      string // by BuildInitrd
	Cmdline     string // of the kernel, in addition to what the suite needs
	Memory      uint64
	VCPUs       int
	User        int // that the VMMs run as; 0: root
	// DiskSlot, NICSlot and HotSlot are the first of each kind.
	DiskSlot int
	NICSlot  int
	HotSlot  int
	// Dir takes the VMs' directories. It is short: sockets lie below it.
	Dir string
	// Huge, if not empty, is a directory of huge pages for RAM.
	Huge string
	// NetNS makes the network namespace of a restore elsewhere.
	NetNS func() (*os.File, error)
	// Tap makes a tap for a NIC in a network namespace; nil: in the caller's.
	Tap func(ns *os.File) (*os.File, error)
	// Still is how long a guest must stay silent to count as stopped: several times its
	// usual pause between two lines.
	Still time.Duration
	// Filtered tells which threads of a VMM have a filter of system calls. Each VMM of a clause is looked at by it
	// (Confined), whatever the clause has had it do. nil: none is.
	Filtered func(pid int, thread string) bool
	// Limit bounds each clause.
	Limit time.Duration
}

// Here is the environment as it must be on this host: in the ground of docs/dev/kvmhost.md
// the guests are those of a guest without KVM, each of whose lines takes a second.
func (e Env) Here() Env {
	if os.Getenv("GODWIT_GROUND") == "nested" {
		e.Cmdline, e.Memory = "mitigations=off tsc=reliable", 128<<20
		e.Still, e.Limit = 3*time.Second, 4*time.Minute
	}
	return e
}

// Detacher is a machine that can be left without ending it, as a shim that dies does.
type Detacher interface{ Detach() error }

// Clause is one promise of package vmm.
type Clause struct {
	Name  string
	check func(ctx context.Context, b *bench) error
}

// FirstUser is for Env.User: no user of the host has it.
const FirstUser = 0x70000000

// Elsewhere names the clause that restores on Env.Destination.
const Elsewhere = "state and RAM go on elsewhere"

// Clauses is the whole suite.
func Clauses() []Clause {
	return []Clause{
		{"start is inert until resume", startIsInert},
		{"a failed start leaves nothing", failedStart},
		{"pause stops the guest, resume goes on", pauseAndResume},
		{"pause and resume are idempotent", idempotent},
		{"save needs a paused VM", saveNeedsPause},
		{"state is without RAM, the source resumes", saveAndResume},
		{"state is loaded by an incoming VM only", loadNeedsIncoming},
		{"what is no state is refused", loadGarbage},
		{Elsewhere, restore},
		{"kill is idempotent and leaves nothing", kill},
		{"power-off is a clean exit", powerOff},
		{"reset ends the process", reset},
		{"panic ends the process", panicked},
		{"NIC is removed and added", nics},
		{"NIC is added after a restore", nicAfterRestore},
		{"unknown NIC is not found", unknownNIC},
		{"disk is plugged in and ejected", disks},
		{"a disk that was plugged in goes on elsewhere", diskMoves},
		{"disk is plugged in after a restore", diskAfterRestore},
		{"a copy of a template gets its devices", copyOfTemplate},
		{"unknown disk is not found", unknownDisk},
		{"a slot that has a disk takes no other", usedSlot},
		{"another process adopts the VM", adopt},
		{"a hanging VMM ends in an error", hang},
	}
}

// Run runs each clause as a subtest.
func Run(t *testing.T, env Env) {
	for _, c := range Clauses() {
		t.Run(c.Name, func(t *testing.T) {
			if err := c.Check(t.Context(), env); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// Check runs the clause; its VMs are gone when it returns.
func (c Clause) Check(ctx context.Context, env Env) error { return onBench(ctx, env, c.check) }
