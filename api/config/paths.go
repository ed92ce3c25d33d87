package config

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/containerd/errdefs"
)

// NodeID tells this node from others on the same host, in names that only the kernel keeps.
func (c *Config) NodeID() string {
	sum := sha256.Sum256([]byte(c.Node + "\x00" + c.StateDir))
	return hex.EncodeToString(sum[:6])
}

// DaemonSocket is where godwitd serves the CLI and the node's shims.
func (c *Config) DaemonSocket() string { return filepath.Join(c.RunDir, "godwitd.sock") }

// MetricsSocket is where godwitd always serves its metrics.
func (c *Config) MetricsSocket() string { return filepath.Join(c.RunDir, "metrics.sock") }

// DashboardName is the file of DashboardSocket, in the directory of DaemonSocket.
const DashboardName = "dashboard.sock"

// DashboardSocket is where godwitd serves its web page.
func (c *Config) DashboardSocket() string { return filepath.Join(c.RunDir, DashboardName) }

// PKIDir is where godwit node init and join write keys and certificates.
func (c *Config) PKIDir() string { return filepath.Join(c.StateDir, "pki") }

// FactsFile is where the node's shims remember what they found out about its files; empty
// without a state_dir.
func (c *Config) FactsFile() string {
	if c.StateDir == "" {
		return ""
	}
	return filepath.Join(c.StateDir, "facts.json")
}

// CacheDir holds the read-only disks that the node's VMs share.
func (c *Config) CacheDir() string { return filepath.Join(c.StateDir, "cache") }

// PacksDir holds what the node keeps of snapshots.
func (c *Config) PacksDir() string { return filepath.Join(c.CacheDir(), "packs") }

// GoldenTablesDir holds the page tables of golden snapshots, with keys: it lies in memory.
func (c *Config) GoldenTablesDir() string { return filepath.Join(c.RunDir, "templates") }

// OldGoldenDir is where the release before has them. Its shims look there as long as they live.
func (c *Config) OldGoldenDir() string { return filepath.Join(c.RunDir, "golden") }

// TemplatesDir holds the VMs that others are started as copies of.
func (c *Config) TemplatesDir() string { return filepath.Join(c.StateDir, "templates") }

// DisksDir holds the writable disks of containers whose snapshots have no place for them: a directory for each of
// containerd's namespaces, and in it one for each container.
func (c *Config) DisksDir() string { return filepath.Join(c.StateDir, "disks") }

// DiskDir is that of one container.
func (c *Config) DiskDir(namespace, id string) string {
	return filepath.Join(c.DisksDir(), namespace, id)
}

// VMsDir holds one directory per containerd namespace, and in it one per VM.
func (c *Config) VMsDir() string { return filepath.Join(c.StateDir, "vms") }

// VMDir is the durable directory of one VM. Ids of VMs hold no slash and do not begin with a dot, so that two
// VMs never share one.
func (c *Config) VMDir(namespace, id string) string {
	return filepath.Join(c.VMsDir(), namespace, id)
}

// VMRunDir is the directory for the sockets of one VM. Its name is a hash, because a
// socket's path is short and the id of a VM is not.
func (c *Config) VMRunDir(namespace, id string) string {
	return filepath.Join(c.RunDir, "vm", vmHash(namespace, id))
}

// MachineSocket is where the shim of a VM, or the one that adopted it, serves
// godwit.machine.v1 for godwitd.
func (c *Config) MachineSocket(namespace, id string) string {
	return filepath.Join(c.VMRunDir(namespace, id), "machine.sock")
}

// PagesChannel names the stream by which a VM comes to this node; token makes it another
// one for each attempt of each operation.
func (c *Config) PagesChannel(namespace, id, token string) string {
	return vmHash(namespace, id) + "-" + token
}

var pagesChannel = regexp.MustCompile(`^([0-9a-f]{16})-([0-9a-f]{16})[0-9a-f]{16}$`)

// pagesSocket begins the names of sockets of channels; oldPagesSocket is that of each channel in the release before.
const (
	pagesSocket    = "pages-"
	oldPagesSocket = "pages.sock"
)

// PagesSocket is where a shim takes the connection of such a channel. Who knows the VM alone, and not the token, finds
// no socket.
func (c *Config) PagesSocket(channel string) (string, error) {
	m := pagesChannel.FindStringSubmatch(channel)
	if m == nil {
		return "", fmt.Errorf("channel %q: no name of a stream: %w", channel, errdefs.ErrInvalidArgument)
	}
	return filepath.Join(c.RunDir, "vm", m[1], pagesSocket+m[2]), nil
}

// LivePagesSocket is PagesSocket for who connects to it. A shim of the release before waits at a socket without a
// token.
func (c *Config) LivePagesSocket(channel string) (string, error) {
	path, err := c.PagesSocket(channel)
	if err != nil {
		return "", err
	}
	old := filepath.Join(filepath.Dir(path), oldPagesSocket)
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		if _, err := os.Lstat(old); err == nil {
			return old, nil
		}
	}
	return path, nil
}

// PagesSockets are those that shims of a VM have left, which may have died.
func (c *Config) PagesSockets(namespace, id string) ([]string, error) {
	entries, err := os.ReadDir(c.VMRunDir(namespace, id))
	var found []string
	for _, e := range entries {
		if (e.Name() == oldPagesSocket || strings.HasPrefix(e.Name(), pagesSocket)) && e.Type() == fs.ModeSocket {
			found = append(found, filepath.Join(c.VMRunDir(namespace, id), e.Name()))
		}
	}
	return found, err
}

// RAMFile is the file that the RAM of one VM lies in.
func (c *Config) RAMFile(namespace, id string) string {
	return filepath.Join(c.RAMDir, vmHash(namespace, id))
}

func vmHash(namespace, id string) string {
	sum := sha256.Sum256([]byte(namespace + "/" + id))
	return hex.EncodeToString(sum[:8])
}

// DefaultStore is where snapshots go on a node whose configuration names no store.
func (c *Config) DefaultStore() string { return filepath.Join(c.StateDir, "store") }

// StoresDir holds which directories of snapshots this node has used: a file for each.
func (c *Config) StoresDir() string {
	if c.StateDir == "" {
		return ""
	}
	return filepath.Join(c.StateDir, "stores")
}

// RecordsFile holds the records of a controller without etcd, and of a node that is alone.
func (c *Config) RecordsFile() string { return filepath.Join(c.StateDir, "records.db") }

// UsesRecords reports whether the state of this node's VMs may lie elsewhere, so that
// Create has to ask the VM's record before it boots anything. On a node that is alone and has its
// own store nothing sleeps before its godwitd has made the file of the records.
func (c *Config) UsesRecords() bool {
	if c.Controller.Listen != "" || c.Controller.Address != "" || c.HasStore() && !c.Registry.Own {
		return true
	}
	if !c.HasStore() {
		return false
	}
	_, err := os.Lstat(c.RecordsFile())
	return !errors.Is(err, fs.ErrNotExist) // a file that cannot be looked at may be there
}

// HasStore reports whether snapshots have a place to go to.
func (c *Config) HasStore() bool { return c.Registry.Repository != "" || c.Registry.Layout != "" }

// Output is a URI of stdio in which {namespace} and {id} stand for the task's.
func Output(uri, namespace, id string) (*url.URL, error) {
	return url.Parse(strings.NewReplacer("{namespace}", namespace, "{id}", id).Replace(uri))
}

// TaskOutput is where the output of a task goes that godwitd creates, unless an order says
// otherwise.
func (c *Config) TaskOutput(namespace, id string) (*url.URL, error) {
	return Output(c.StdioURI, namespace, id)
}
