package shim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"godwit.dev/godwit/network"
	"godwit.dev/godwit/shim/cgroup"
	"godwit.dev/godwit/shim/journal"
	"godwit.dev/godwit/shim/proc"
)

// reclaim frees everything that a journal names, and the journal last. It needs no shim, may be repeated, and takes
// what is gone for done. An attempt of an operation that it ends stays fenced: it never runs here. The caller has made
// the journal, or claimed it: what somebody else has taken meanwhile is that one's to end.
func reclaim(ctx context.Context, host *Host, dir string, j *journal.Journal) error {
	if j == nil {
		return nil
	}
	return reclaimAs(ctx, host, dir, j, proc.ID{})
}

// reclaimAs is reclaim whose fence is the owner's: no other process takes it while that one lives.
func reclaimAs(ctx context.Context, host *Host, dir string, j *journal.Journal, owner proc.ID) error {
	if err := releaseResources(ctx, host, dir, j); err != nil {
		return err
	}
	return writeOutcome(dir, j, func() error {
		if !j.Phase.Destination() || j.Operation == "" {
			return removeVM(dir)
		}
		fence := &journal.Journal{
			Phase: journal.Fenced, Operation: j.Operation, Attempt: j.Attempt, Self: j.Self, Digest: j.Digest,
			Generation: j.Generation,
			Resources:  journal.Resources{Shim: owner},
		}
		return errors.Join(fence.Write(dir), removeFile(stateFile(dir)))
	})
}

// releaseFence leaves a fence, which was the owner's, to the next process that claims it.
func releaseFence(dir string, owner proc.ID) error {
	return locked(dir, func(now *journal.Journal, err error) error {
		if errdefs.IsNotFound(err) {
			return nil
		}
		if err != nil || now.Phase != journal.Fenced || now.Shim != owner {
			return err
		}
		now.Shim = proc.ID{}
		return now.Write(dir)
	})
}

// locked hands fn the journal in dir. Meanwhile no other process claims it or writes a last word on it. Where there are
// no VMs at all there is nothing to do.
func locked(dir string, fn func(now *journal.Journal, err error) error) error {
	unlock, err := lockDir(filepath.Dir(dir))
	if errdefs.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unlock()
	return fn(journal.Read(dir))
}

// reclaimUnfenced is reclaim that leaves no fence.
func reclaimUnfenced(ctx context.Context, host *Host, dir string, j *journal.Journal) error {
	if j == nil {
		return nil
	}
	if err := releaseResources(ctx, host, dir, j); err != nil {
		return err
	}
	return writeOutcome(dir, j, func() error { return removeVM(dir) })
}

// writeOutcome writes the last word on what j was, or removes it. It does neither if the journal in dir is another
// process's by now. That one frees the same again and has a last word of its own.
func writeOutcome(dir string, j *journal.Journal, last func() error) error {
	return locked(dir, func(now *journal.Journal, err error) error {
		switch {
		case errdefs.IsNotFound(err): // its last word was said, or its first one never written
			return removeVM(dir)
		case err != nil:
			return err
		case now.Shim != j.Shim:
			return nil
		}
		return last()
	})
}

// removeAll is a variable for the tests.
var removeAll = os.RemoveAll

// removeVM removes the directory of a VM. godwitd may put the log of a successor there meanwhile,
// which finds nothing to take.
func removeVM(dir string) error {
	err := removeAll(dir)
	for range 10 {
		if !errors.Is(err, unix.ENOTEMPTY) {
			break
		}
		err = removeAll(dir)
	}
	return err
}

// releaseResources is reclaim that keeps the journal. After a VMM that does not end, such as one whose disk hangs,
// nothing is freed: it may still write to what it has.
func releaseResources(ctx context.Context, host *Host, dir string, j *journal.Journal) error {
	var errs []error
	try := func(what string, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", what, err))
		}
	}
	if j.Process != nil {
		if err := kill(ctx, vmmOf(j)); err != nil {
			return fmt.Errorf("reclaim VM in %s, of which nothing is freed: kill VMM: %w", dir, err)
		}
	}
	try("detach network", detach(ctx, host, j, j.Links))
	try("end sandbox process", sandboxOf(j).Kill(ctx))
	try("end sandbox processes of containers", endHolders(ctx, j))
	try("free RAM", removeFile(j.RAM))
	try("free page table", removeTables(j))
	if j.Phase == journal.Released && j.Spec != nil { // a snapshot or another node has what it wrote
		try("forget its writable disk", host.Disks.ForgetKept(j.Spec.Namespace, j.Spec.ID))
	}
	if err := keepDisks(host, dir, j); err != nil { // they may be all that is left of it
		try("free disks", err)
	} else {
		try("free disks", host.Disks.Cleanup(ctx, filepath.Join(dir, "disks")))
	}
	if j.RunDir != "" {
		try("remove sockets", os.RemoveAll(j.RunDir))
	}
	try("leave cgroup", cgroup.Leave(j.Cgroup, os.Getpid()))
	private, err := unshared(dir, j.Private)
	try("look who else is in the cgroup", err)
	if err == nil {
		try("empty cgroup", cgroup.Empty(ctx, private))
		try("remove cgroup", cgroup.Remove(private))
	}
	if len(errs) > 0 {
		return fmt.Errorf("reclaim VM in %s: %w", dir, errors.Join(errs...))
	}
	return nil
}

// netnsOf is a path of the network namespace that the VM is in; empty says that nothing leads there any more. A path
// below /proc is believed for no longer than a process of the VM lives, all of which are in that namespace: the pid may
// be another process's, after a restart of the host say. The namespace there may be the host's own, with an interface
// of the same name.
func netnsOf(j *journal.Journal) (string, error) {
	if !strings.HasPrefix(j.NetNS, "/proc/") {
		return j.NetNS, nil
	}
	for _, id := range []proc.ID{sandboxOf(j), vmmOf(j)} {
		alive, err := id.Alive()
		if err != nil {
			return "", fmt.Errorf("find the network namespace of a VM: %w", err)
		}
		if alive {
			return fmt.Sprintf("/proc/%d/ns/net", id.PID), nil
		}
	}
	return "", nil
}

// detach gives back what Attach has made of links. A namespace that nothing leads to has
// taken it along; of a VM that may run elsewhere it stays silent.
func detach(ctx context.Context, host *Host, j *journal.Journal, links []network.Link) error {
	netns, err := netnsOf(j)
	if err != nil || netns == "" || len(links) == 0 {
		return err
	}
	if j.Reassigned || j.Move && (j.Phase == journal.Released || j.Phase.Destination()) {
		return host.Network.Leave(ctx, netns, links)
	}
	return host.Network.Detach(ctx, netns, links)
}

// stateFile holds the device state between the fill and the load.
func stateFile(dir string) string { return filepath.Join(dir, "state") }

// consoleFile takes what the guest writes to its serial port.
func consoleFile(dir string) string { return filepath.Join(dir, "console.log") }

// configNote is where Create leaves the configuration's path for delete.
const configNote = "godwit-config"

func saveConfigPath(bundle, path string) error {
	return os.WriteFile(filepath.Join(bundle, configNote), []byte(path), 0o600)
}

// ConfigPath is the configuration that the task of a bundle was made with; empty: its Create did not
// come so far, or it was the default one.
func ConfigPath(bundle string) (string, error) {
	data, err := os.ReadFile(filepath.Join(bundle, configNote))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("read which configuration the task has: %w: %w", err, errdefs.ErrUnavailable)
	}
	return string(data), nil
}
