//go:build integration && qemu2

package qemu

import (
	"os"
	"testing"

	"godwit.dev/godwit/vmm/vmmtest"
)

// TestSecondQEMU runs it on those of the QEMU that GODWIT_QEMU2 names (with
// GODWIT_QEMU2_DATA and GODWIT_QEMU2_MODULES), and moves VMs from one to the other and
// back. A machine with one QEMU does not build it: it has the tag qemu2.
func TestSecondQEMU(t *testing.T) {
	binary := os.Getenv("GODWIT_QEMU2")
	if binary == "" {
		t.Fatal("GODWIT_QEMU2 names no second QEMU")
	}
	first := realEnv(t, Driver{})
	second := realEnv(t, Driver{Binary: binary, DataDir: os.Getenv("GODWIT_QEMU2_DATA"),
		ModuleDir: os.Getenv("GODWIT_QEMU2_MODULES")})
	vmmtest.Run(t, second)
	moves := map[string]vmmtest.Env{"to the second": first, "to the first": second}
	for name, env := range moves {
		env.Destination = second.Driver
		if name == "to the first" {
			// "max" has features in a newer version that an older one lacks.
			env.Destination, env.CPU = first.Driver, "qemu64"
		}
		t.Run(name, func(t *testing.T) {
			for _, c := range vmmtest.Clauses() {
				if c.Name != vmmtest.Elsewhere {
					continue
				}
				if err := c.Check(t.Context(), env); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}
