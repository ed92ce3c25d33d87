package shimtest

import (
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/containerd/shimtest"
	"github.com/containerd/typeurl/v2"
	"github.com/opencontainers/runtime-spec/specs-go"
)

func TestMain(m *testing.M) {
	typeurl.Register(&specs.Process{}, "types.containerd.io", "opencontainers/runtime-spec",
		strconv.Itoa(specs.VersionMajor), "Process")
	flag.Parse()
	_, leftOut := Cases()
	for i, name := range leftOut {
		leftOut[i] = "^TestShim$/^" + strings.ReplaceAll(name, "/", "$/^") + "$"
	}
	if more := flag.Lookup("test.skip").Value.String(); more != "" {
		leftOut = append(leftOut, more)
	}
	if err := flag.Set("test.skip", strings.Join(leftOut, "|")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	os.Exit(m.Run())
}

func config(t testing.TB, format bool) shimtest.Config {
	// An absolute path turns the suites' leak check on.
	binary := os.Getenv("SHIM_BINARY")
	if binary == "" {
		t.Fatal("SHIM_BINARY is not set: run make shimtest")
	}
	return shimtest.Config{ShimBinary: binary, FormatMounts: format}
}

// TestShim runs the suites with one overlay mount and with block files.
func TestShim(t *testing.T) {
	for _, mode := range []struct {
		name   string
		format bool
	}{{"overlay", false}, {"block", true}} {
		t.Run(mode.name, func(t *testing.T) {
			cfg := config(t, mode.format)
			shimtest.NewRunSuite(cfg).Run(t)
			shimtest.NewExecSuite(cfg).Run(t)
			shimtest.NewOOMSuite(cfg).Run(t)
			shimtest.NewLayersSuite(cfg).Run(t)
		})
	}
}

// BenchmarkShim times the phases of a start and an exec, with block files.
func BenchmarkShim(b *testing.B) {
	cfg := config(b, true)
	b.Run("Run", shimtest.NewRunSuite(cfg).Bench)
	b.Run("Exec", shimtest.NewExecSuite(cfg).Bench)
}
