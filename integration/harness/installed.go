package harness

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"time"

	"godwit.dev/godwit/internal/retry"
)

// The paths of a host on which godwit is installed later, as nothing here knows it.
const (
	hostConfig     = "/etc/godwit/config.toml"
	hostContainerd = "/etc/containerd/config.toml"
	hostSocket     = "/run/containerd/containerd.sock"
	// restartOrder is there while containerd is to be restarted.
	restartOrder = "/run/restart-containerd"
	restartPause = 50 * time.Millisecond
)

// ownPlaces gives a node places of its own for what an installation writes.
const ownPlaces = `set -e
mkdir -p /run/.private/local/upper /run/.private/local/work
mount -t overlay overlay -o lowerdir=/usr/local,upperdir=/run/.private/local/upper,workdir=/run/.private/local/work \
	/usr/local
mkdir -p "$1" /var/lib/godwit
mount --bind "$1" /var/lib/godwit
# Programs themselves, and no links: a pod that mounts this directory sees where none leads.
rm -r /opt/cni/bin
mkdir -p /opt/cni/bin /run/.private/cni/upper /run/.private/cni/work
mount -t overlay overlay -o "lowerdir=$2,upperdir=/run/.private/cni/upper,workdir=/run/.private/cni/work" /opt/cni/bin`

// systemctl is the node's: the harness is its service manager.
const systemctl = `#!/bin/sh
[ "$*" = "restart containerd" ] || { echo "unknown: systemctl $*" >&2; exit 1; }
touch ` + restartOrder + `
while [ -e ` + restartOrder + ` ]; do sleep 0.1; done
`

// installLater makes the node a host on which godwit is not yet. Who restarts containerd there asks systemctl.
func (n *Node) installLater(ctx context.Context) error {
	if !n.harness.opts.Installed {
		return nil
	}
	if _, err := n.Run(ctx, "sh", "-c", ownPlaces, "sh", filepath.Join(n.Dir, "lib"),
		filepath.Join(n.harness.root, "bin", "tools", "cni")); err != nil {
		return err
	}
	for _, file := range []string{"/usr/local/sbin/systemctl", "/usr/local/bin/systemctl"} {
		if err := os.WriteFile(n.inside(file), []byte(systemctl), 0o755); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		n.manage(ctx)
	}()
	n.harness.onClose(func() error { cancel(); <-ended; return nil })
	return nil
}

// manage restarts containerd when it is told to. What it started runs on.
func (n *Node) manage(ctx context.Context) {
	order := n.inside(restartOrder)
	for ctx.Err() == nil {
		if _, err := os.Lstat(order); err == nil {
			err := n.Containerd.Stop()
			if err == nil {
				err = n.StartContainerd(ctx)
			}
			if err != nil {
				n.harness.opts.Log("node %s: restart containerd: %v", n.Name, err)
			}
			_ = os.Remove(order)
		}
		retry.Sleep(ctx, restartPause)
	}
}

// asHost are the daemon's paths where godwit is installed later: those of any host.
var asHost = strings.NewReplacer("state = '%[1]s/state'", "state = '/run/containerd'",
	"'%[1]s/c.sock'", "'"+hostSocket+"'", "'%[1]s/c.sock.ttrpc'", "'"+hostSocket+".ttrpc'",
	"'%[1]s/s'", "'/run/containerd/s'")

// containerdFile is where the node's containerd has its configuration: by its path in the node, and as this process
// reaches it.
func (n *Node) containerdFile() (inNode, here string) {
	if n.harness.opts.Installed {
		return hostContainerd, n.inside(hostContainerd)
	}
	file := filepath.Join(n.Dir, "containerd.toml")
	return file, file
}

// Hosts gives the node names for addresses, as a DNS of the cluster would.
func (n *Node) Hosts(lines string) error {
	f, err := os.OpenFile(n.inside("/etc/hosts"), os.O_APPEND|os.O_WRONLY|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	if _, err := f.WriteString(lines); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}
