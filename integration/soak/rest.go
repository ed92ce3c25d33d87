package soak

import (
	"context"
	"crypto/tls"
	"fmt"
	"io/fs"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"time"

	etcd "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"godwit.dev/godwit/integration/harness"
)

// mayStay are kinds of keys that stay after all VMs have ended: what is known of nodes and of the store, and the last
// events.
var mayStay = []string{"notes", "version", "incarnation", "indexed"}

// keys counts what the controllers keep, by its kind: the first word of a key. An etcd that is away does not make the
// caller wait.
func (w *world) keys(ctx context.Context) (map[string]int, error) {
	ctx, cancel := context.WithTimeout(ctx, askBound)
	defer cancel()
	client, err := etcd.New(etcd.Config{
		Context: ctx, Endpoints: []string{"https://" + harness.EtcdAddress}, Logger: zap.NewNop(), DialTimeout: askBound,
		TLS: &tls.Config{InsecureSkipVerify: true}, // who answers there, the nodes find out
		DialOptions: []grpc.DialOption{grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			return w.Dial(ctx, "tcp", harness.EtcdAddress)
		})},
	})
	if err != nil {
		return nil, err
	}
	defer client.Close()
	resp, err := client.Get(ctx, "/godwit/", etcd.WithPrefix(), etcd.WithKeysOnly())
	if err != nil {
		return nil, fmt.Errorf("read keys of etcd: %w", err)
	}
	all := map[string]int{}
	for _, kv := range resp.Kvs {
		kind, _, _ := strings.Cut(strings.TrimPrefix(string(kv.Key), "/godwit/"), "/")
		all[kind]++
	}
	return all, nil
}

// manifests are what the registry still has of VMs: REPOSITORY@DIGEST each. Blobs of none of them go
// with a registry's own collection.
func (w *world) manifests() (all []string, err error) {
	root := filepath.Join(w.Dir, "registry/docker/registry/v2/repositories")
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.Name() != "link" {
			return err
		}
		info, err := d.Info()
		if err != nil || w.mayHaveForgotten(info.ModTime()) {
			return err
		}
		name, err := filepath.Rel(root, path)
		if repository, digest, ok := strings.Cut(name, "/_manifests/revisions/"); ok {
			all = append(all, repository+"@"+filepath.Dir(digest))
		}
		return err
	})
	return all, err
}

// window is the time between the copy of a store and its return.
type window struct{ begin, end time.Time }

// forgetting is how long after the return an upload may end that the records have forgotten.
const forgetting = time.Minute

// mayHaveForgotten reports whether the records may know nothing of what was stored at that time: a store that
// was put back has forgotten it, and no record names its repository once the VM is removed.
func (w *world) mayHaveForgotten(at time.Time) bool {
	w.result.mu.Lock()
	defer w.result.mu.Unlock()
	return slices.ContainsFunc(w.windows, func(x window) bool {
		return at.After(x.begin) && at.Before(x.end.Add(forgetting))
	})
}

// kept lists what controllers and registry have that they did not have at the begin.
func (w *world) kept(ctx context.Context) (all []string, err error) {
	keys, err := w.keys(ctx)
	if err != nil {
		return nil, err
	}
	for kind, n := range keys {
		if !slices.Contains(mayStay, kind) {
			all = append(all, fmt.Sprintf("etcd: %d keys of %s", n, kind))
		}
	}
	manifests, err := w.manifests()
	for _, m := range manifests {
		if !slices.Contains(w.stored, m) {
			all = append(all, "registry: "+m)
		}
	}
	return all, err
}

// wire is the name of those that are of no node, in figures.
const wire = "wire"

// usage of all daemons, by node and name.
func (w *world) usage(ctx context.Context) (map[string]map[string]harness.Usage, error) {
	all := map[string]map[string]harness.Usage{wire: {}}
	for name, p := range map[string]*harness.Process{"etcd": w.Etcd, "registry": w.Registry} {
		u, err := harness.UsageOf(p.PID())
		if err != nil {
			return nil, fmt.Errorf("usage of %s: %w", name, err)
		}
		all[wire][name] = u
	}
	for _, n := range w.Nodes() {
		u, err := n.Usage(ctx)
		if err != nil {
			return nil, fmt.Errorf("usage of node %s: %w", n.Name, err)
		}
		all[n.Name] = u
	}
	return all, nil
}

// What the shim of a VM may hold, whatever has happened to it.
const (
	mostShimFiles = 64
	mostShimKiB   = 96 << 10
)

// shims is what the shim of one VM holds at most. They live as long as their VMs, and are measured at
// each judgement.
func (w *world) shims() (most harness.Usage) {
	for _, g := range w.guests {
		for _, n := range w.Nodes() {
			pid := g.journal(n).Shim.PID
			if pid == 0 {
				continue
			}
			host, err := n.HostPID(pid)
			if err != nil {
				continue // it has gone
			}
			u, err := harness.UsageOf(host)
			if err != nil {
				continue
			}
			most.Files, most.KiB = max(most.Files, u.Files), max(most.KiB, u.KiB)
		}
	}
	return most
}
