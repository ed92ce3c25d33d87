package harness

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"godwit.dev/godwit/api/config"
)

// Inventory is what a node holds that a VM may leave there: processes, mounts, links, network namespaces, CNI leases,
// RAM files, cgroups. Two of them are compared.
type Inventory []string

// Since answers what is here and was not there before.
func (i Inventory) Since(before Inventory) Inventory {
	var more Inventory
	for _, item := range i {
		if !slices.Contains(before, item) {
			more = append(more, item)
		}
	}
	return more
}

// Inventory lists what the node holds now.
func (n *Node) Inventory(ctx context.Context) (Inventory, error) {
	var all Inventory
	for _, list := range []func(context.Context) ([]string, error){n.processes, n.mounts, n.links, n.files,
		func(context.Context) ([]string, error) {
			return n.cgroups()
		}} {
		items, err := list(ctx)
		if err != nil {
			return nil, fmt.Errorf("list what node %s holds: %w", n.Name, err)
		}
		all = append(all, items...)
	}
	slices.Sort(all)
	return all, nil
}

// cleanTimeout is more than two rounds of godwitd's periodic work.
const cleanTimeout = 40 * time.Second

// Clean waits until the node holds nothing more than before.
func (n *Node) Clean(ctx context.Context, before Inventory) error {
	return Poll(ctx, cleanTimeout, func(ctx context.Context) error {
		now, err := n.Inventory(ctx)
		if err != nil {
			return err
		}
		if more := now.Since(before); len(more) > 0 {
			return fmt.Errorf("node %s still holds:\n  %s", n.Name, strings.Join(more, "\n  "))
		}
		return nil
	})
}

// CheckClean takes the inventory now and fails the test if the node holds more at the
// test's end.
func (n *Node) CheckClean(t testing.TB) {
	t.Helper()
	before, err := n.Inventory(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Clean(context.WithoutCancel(t.Context()), before); err != nil {
			t.Error(err)
		}
	})
}

// processes of the node by name and first argument, without its own daemons and the
// harness' commands.
func (n *Node) processes(context.Context) ([]string, error) {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	var out []string
	for _, dir := range dirs {
		if pid, err := strconv.Atoi(filepath.Base(dir)); err != nil || !n.holds(pid) {
			continue // gone, or of another node
		}
		line, err := os.ReadFile(filepath.Join(dir, "cmdline"))
		if err != nil {
			continue
		}
		args := strings.Split(strings.TrimRight(string(line), "\x00"), "\x00")
		if name := filepath.Base(args[0]); len(line) > 0 &&
			!slices.Contains([]string{"exe", "containerd", "godwitd", "ctr", "godwit", "ip"}, name) {
			out = append(out, fmt.Sprintf("process %s %s", filepath.Base(dir), strings.Join(args[:min(len(args), 8)], " ")))
		}
	}
	return out, nil
}

// VMMs answers the pids of all VMMs on the node, those too that no journal names.
func (n *Node) VMMs() (pids []int, err error) {
	all, err := n.processes(context.Background())
	for _, item := range all {
		if f := strings.Fields(item); len(f) > 2 && IsVMM(f[2]) {
			pid, err := strconv.Atoi(f[1])
			if err != nil {
				return nil, err
			}
			pids = append(pids, pid)
		}
	}
	return pids, err
}

// VMM answers the name and version of the one VMM that runs on the node.
func (n *Node) VMM(ctx context.Context) (string, error) {
	all, err := n.processes(ctx)
	if err != nil {
		return "", err
	}
	for _, item := range all {
		program := strings.Fields(item)[2]
		if IsVMM(program) {
			version, err := n.Run(ctx, program, "--version")
			first, _, _ := strings.Cut(version, "\n")
			return filepath.Base(program) + ": " + first, err
		}
	}
	return "", fmt.Errorf("find the VMM on node %s: none runs", n.Name)
}

// RAM answers size and resident bytes of the RAM files on the node's tmpfs.
func (n *Node) RAM() (size, resident uint64, err error) {
	err = filepath.WalkDir(n.inside(n.Dir+"/ram"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err != nil {
			return err
		}
		size += uint64(st.Size)
		resident += uint64(st.Blocks) * 512
		return nil
	})
	return size, resident, err
}

// OpenRAM opens the one RAM file on the node's tmpfs.
func (n *Node) OpenRAM() (*os.File, error) {
	var found []string
	err := filepath.WalkDir(n.inside(n.Dir+"/ram"), func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			if info, ierr := d.Info(); ierr == nil && info.Size() >= minRAM {
				found = append(found, path)
			}
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	if len(found) != 1 {
		return nil, fmt.Errorf("node %s has the RAM files %q, want one", n.Name, found)
	}
	return os.Open(found[0])
}

// minRAM is less than any VM has: smaller files in the pool are locks and the like.
const minRAM = 16 << 20

func (n *Node) mounts(context.Context) ([]string, error) {
	data, err := os.ReadFile(n.holder.proc("mountinfo"))
	if err != nil {
		return nil, err
	}
	var out []string
	for _, line := range strings.Split(strings.TrimSpace(string(data)), "\n") {
		// The RAM pool is the node's own and stays, and the first "ip netns add" mounts
		// /run/netns for good; what lies in either is listed.
		if f := strings.Fields(line); len(f) > 4 && f[4] != n.Dir+"/ram" && f[4] != "/run/netns" {
			out = append(out, "mount "+f[4])
		}
	}
	return out, nil
}

func (n *Node) links(ctx context.Context) ([]string, error) {
	text, err := n.Run(ctx, "ip", "-brief", "link")
	if err != nil {
		return nil, err
	}
	var out []string
	for _, line := range strings.Split(strings.TrimSpace(text), "\n") {
		if f := strings.Fields(line); len(f) > 0 {
			out = append(out, "link "+f[0])
		}
	}
	return out, nil
}

// files that stand for a resource: named network namespaces, CNI leases and results,
// RAM, and the sockets of shims.
func (n *Node) files(context.Context) ([]string, error) {
	var out []string
	for _, dir := range []string{"/run/netns", "/var/run/netns", "/var/lib/cni", n.Dir + "/ram", n.Dir + "/s",
		"/run/containerd/s", n.Dir + "/run"} {
		root := n.inside(dir)
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				if errors.Is(err, fs.ErrNotExist) {
					return nil
				}
				return err
			}
			name := filepath.Base(path)
			if slices.Contains(n.daemonSockets(), path) {
				return nil // of no VM; a newer godwitd has more of them
			}
			if path == n.inside(n.Dir+"/run/templates") || path == n.inside(n.Dir+"/run/golden") {
				return fs.SkipDir // tables that the node keeps, of no VM; the second is of the release before
			}
			if !d.IsDir() && name != "lock" && name != ".lock" && !strings.HasPrefix(name, "last_reserved_ip") {
				out = append(out, "file "+strings.TrimPrefix(path, n.holder.proc("root")))
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

// daemonSockets are the sockets that godwitd itself serves.
func (n *Node) daemonSockets() []string {
	c := config.Config{RunDir: n.Dir + "/run"}
	return []string{n.inside(c.DaemonSocket()), n.inside(c.MetricsSocket()), n.inside(c.DashboardSocket())}
}
