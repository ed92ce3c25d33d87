package cli

import (
	"fmt"
	"io"
	"os"

	"godwit.dev/godwit/api/config"
)

// booted is there while systemd runs the host.
const booted = "/run/systemd/system"

// introduce says what a node that was just made has, and what its administrator does next. systemd is
// the path that booted stands for.
func introduce(out io.Writer, cfg *config.Config, systemd string) error {
	_, err := fmt.Fprintf(out, "node %s holds the cluster's CA in %s; let others join with: godwit node token NAME\n%s%s",
		cfg.Node, cfg.PKIDir(), whereSnapshotsGo(cfg), nextStep(systemd))
	return err
}

func whereSnapshotsGo(cfg *config.Config) string {
	switch {
	case cfg.Registry.Own:
		return fmt.Sprintf("VMs sleep in %s, of this node alone. To wake them on other nodes, set registry.repository "+
			"to one registry on all nodes\n", cfg.Registry.Layout)
	case cfg.Registry.Layout != "":
		return fmt.Sprintf("VMs sleep in %s (registry.layout)\n", cfg.Registry.Layout)
	}
	return fmt.Sprintf("VMs sleep in %s (registry.repository)\n", cfg.Registry.Repository)
}

func nextStep(systemd string) string {
	if _, err := os.Stat(systemd); err == nil {
		return "next: systemctl enable --now godwitd && godwit doctor\n"
	}
	return "next, without systemd: start containerd, then godwitd, as root, from what starts this host's services:\n" +
		"  containerd &\n  godwitd &\n  godwit doctor\n" +
		"or, until this host boots again: godwit doctor --fix, which starts both\n"
}
