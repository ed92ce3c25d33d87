package ring

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"godwit.dev/godwit/integration/harness"
)

// shimtest writes the configuration that containerd's conformance suites find the shim
// with, and answers the variables that name it. Their leak check needs the shim's path.
func (r *Runner) shimtest(c Case, dir string) ([]string, error) {
	bin := filepath.Join(r.Root, "bin")
	var b strings.Builder
	fmt.Fprintf(&b, "node = \"shimtest\"\nstate_dir = %q\nrun_dir = %q\nram_dir = %q\nram_size = \"2GiB\"\n[vmm]\nkind "+
		"= %q\naccel = \"kvm\"\n",
		filepath.Join(dir, "lib"), filepath.Join(dir, "run"), filepath.Join(dir, "ram"), c.VMM)
	if binary := os.Getenv("GODWIT_CLOUD_HYPERVISOR"); binary != "" {
		fmt.Fprintf(&b, "cloud_hypervisor = %q\n", binary)
	}
	// Each test brings a root file system of its own, of which the disk cache keeps one more copy.
	fmt.Fprintf(&b, "[cache]\nmax_size = \"128MiB\"\n[guest]\nkernel = %q\ninitrd = %q\n%s",
		filepath.Join(bin, "guest", "vmlinuz"), filepath.Join(bin, "guest", "initramfs"), harness.Ground())
	config := filepath.Join(dir, "config.toml")
	if err := os.WriteFile(config, []byte(b.String()), 0o600); err != nil {
		return nil, err
	}
	return []string{
		"GODWIT_CONFIG=" + config, "SHIMTEST_TESTBIN=" + filepath.Join(bin, "ring", "testbin"),
		"SHIM_BINARY=" + filepath.Join(bin, "containerd-shim-godwit-v1"), "PATH=" + bin + ":" + os.Getenv("PATH"),
	}, nil
}
