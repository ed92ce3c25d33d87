package bundle

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	criv1 "godwit.dev/godwit/api/cri/v1"
)

// sandboxFiles are files of a pod's bundle, and where each container has them.
var sandboxFiles = []struct{ name, target string }{
	{"hostname", "/etc/hostname"}, {"hosts", "/etc/hosts"}, {"resolv.conf", "/etc/resolv.conf"}, {"shm", devShm},
}

// writeSandboxFiles makes them as the CRI plugin does: hosts is the node's, and so is resolv.conf of a pod without a
// DNS configuration.
func writeSandboxFiles(dir string, c *criv1.PodSandboxConfig) error {
	hostname := c.GetHostname()
	var err error
	if hostname == "" {
		if hostname, err = os.Hostname(); err != nil {
			return fmt.Errorf("hostname: %w", err)
		}
	}
	hosts, err := os.ReadFile("/etc/hosts")
	if err != nil {
		return fmt.Errorf("make hosts of pod: %w", err)
	}
	resolv := []byte(resolvConf(c.GetDnsConfig()))
	if c.GetDnsConfig() == nil {
		if resolv, err = os.ReadFile("/etc/resolv.conf"); err != nil {
			return fmt.Errorf("make resolv.conf of pod: %w", err)
		}
	}
	for name, data := range map[string][]byte{"hostname": []byte(hostname + "\n"), "hosts": hosts, "resolv.conf": resolv} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			return fmt.Errorf("make files of pod: %w", err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "shm"), 0o700); err != nil { // stands for a tmpfs that the guest makes
		return fmt.Errorf("make files of pod: %w", err)
	}
	return nil
}

func resolvConf(c *criv1.DNSConfig) string {
	var b strings.Builder
	if s := c.GetSearches(); len(s) > 0 {
		fmt.Fprintf(&b, "search %s\n", strings.Join(s, " "))
	}
	for _, s := range c.GetServers() {
		fmt.Fprintf(&b, "nameserver %s\n", s)
	}
	if o := c.GetOptions(); len(o) > 0 {
		fmt.Fprintf(&b, "options %s\n", strings.Join(o, " "))
	}
	return b.String()
}

// mountSandboxFiles gives a container those files of its pod's bundle that are there, unless it mounts something else
// in their place. The CRI plugin mounts its own, so that a bundle of a pause container has none.
func mountSandboxFiles(oci *specs.Spec, pod string) error {
	for _, f := range sandboxFiles {
		source := filepath.Join(pod, f.name)
		if _, err := os.Lstat(source); errors.Is(err, fs.ErrNotExist) {
			continue
		} else if err != nil {
			return fmt.Errorf("find files of pod: %w", err)
		}
		at := func(m specs.Mount) bool { return path.Clean(m.Destination) == f.target }
		if slices.ContainsFunc(oci.Mounts, func(m specs.Mount) bool { return at(m) && isBind(m) }) {
			continue
		}
		oci.Mounts = slices.DeleteFunc(oci.Mounts, at) // a /dev/shm of the container's own
		access := "rw"
		if f.target != devShm && oci.Root != nil && oci.Root.Readonly {
			access = "ro"
		}
		oci.Mounts = append(oci.Mounts, specs.Mount{Source: source, Destination: f.target, Type: "bind",
			Options: []string{"rbind", "rprivate", access}})
	}
	return nil
}
