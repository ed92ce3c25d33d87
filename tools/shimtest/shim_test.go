// Package shimtest runs containerd's conformance suites against the built shim. It is a
// module of its own, so that the suites' dependencies are not godwit's.
package shimtest

import (
	"os"
	"strconv"
	"testing"

	"github.com/containerd/shimtest"
	"github.com/containerd/typeurl/v2"
	"github.com/opencontainers/runtime-spec/specs-go"
)

func TestMain(m *testing.M) {
	typeurl.Register(&specs.Process{}, "types.containerd.io", "opencontainers/runtime-spec", strconv.Itoa(specs.VersionMajor), "Process")
	os.Exit(m.Run())
}

// TestShim runs the suites with one overlay mount and with block files. SHIM_BINARY is
// an absolute path, which turns the suites' leak check on.
func TestShim(t *testing.T) {
	binary := os.Getenv("SHIM_BINARY")
	if binary == "" {
		t.Fatal("SHIM_BINARY is not set: run make shimtest")
	}
	for name, format := range map[string]bool{"overlay": false, "block": true} {
		t.Run(name, func(t *testing.T) {
			cfg := shimtest.Config{ShimBinary: binary, FormatMounts: format}
			shimtest.NewRunSuite(cfg).Run(t)
			shimtest.NewExecSuite(cfg).Run(t)
			shimtest.NewOOMSuite(cfg).Run(t)
			if format {
				shimtest.NewLayersSuite(cfg).Run(t)
			}
		})
	}
}
