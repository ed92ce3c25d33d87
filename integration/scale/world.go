package scale

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	etcd "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"godwit.dev/godwit/migrate/pki"
	"godwit.dev/godwit/migrate/store"
	"godwit.dev/godwit/migrate/transition"
)

// world is a control plane: one controller with a file, or three with an etcd.
type world struct {
	root, dir   string // of the repository; of the run
	name        string
	shared      bool
	slow        slowSync
	controllers []*program
	addresses   []string
	etcd        *program
	etcdURL     string
	mounts      []string
}

// prepare makes the authority and the certificates of all nodes, once for all worlds.
func prepare(dir string, nodes int) error {
	first := filepath.Join(dir, "pki", "c0")
	if err := pki.Init(first, "c0", []string{"127.0.0.1"}); err != nil {
		return err
	}
	authority, err := pki.OpenAuthority(first)
	if err != nil {
		return err
	}
	var group errgroup.Group
	group.SetLimit(64)
	for i := range nodes {
		group.Go(func() error {
			csr, err := pki.Request(pkiDir(dir, i), nodeName(i), []string{"127.0.0.1"})
			if err != nil {
				return err
			}
			chain, err := authority.Sign(csr, nodeName(i))
			if err != nil {
				return err
			}
			return pki.Install(pkiDir(dir, i), nodeName(i), chain)
		})
	}
	return group.Wait()
}

// openWorld starts what keeps the records, with those of a fleet in it, and the controllers.
func openWorld(ctx context.Context, root, dir, name string, shared bool, slow slowSync, nodes int) (w *world,
	err error) {
	w = &world{root: root, dir: dir, name: name, shared: shared, slow: slow}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.close())
		}
	}()
	if err := os.MkdirAll(w.at("log"), 0o755); err != nil {
		return w, err
	}
	if err := copyKeys(w.state(0, "pki"), filepath.Join(dir, "pki", "c0")); err != nil {
		return w, err
	}
	if shared {
		if err := w.startEtcd(ctx); err != nil {
			return w, err
		}
	}
	if err := w.seed(ctx, 0, nodes); err != nil {
		return w, err
	}
	return w, w.startControllers(ctx)
}

// copyKeys copies a directory of keys, which others may not read.
func copyKeys(to, from string) error {
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		return err
	}
	files, err := os.ReadDir(to)
	for _, f := range files {
		err = errors.Join(err, os.Chmod(filepath.Join(to, f.Name()), 0o600))
	}
	return err
}

func (w *world) at(of ...string) string {
	return filepath.Join(append([]string{w.dir, w.name}, of...)...)
}

func (w *world) state(i int, of string) string { return w.at(fmt.Sprint("c", i), "lib", of) }

// count of controllers.
func (w *world) count() int {
	if w.shared {
		return 3
	}
	return 1
}

func (w *world) startEtcd(ctx context.Context) error {
	client, err := freeAddress()
	if err != nil {
		return err
	}
	peers, err := freeAddress()
	if err != nil {
		return err
	}
	w.etcdURL = "http://" + client
	w.etcd, err = launch(ctx, w.at("log"), "etcd", client, w.slow, filepath.Join(w.root, "bin", "tools", "etcd", "server"),
		"--data-dir", w.at("etcd"), "--listen-client-urls", w.etcdURL, "--advertise-client-urls", w.etcdURL,
		"--listen-peer-urls", "http://"+peers, "--initial-advertise-peer-urls", "http://"+peers, "--initial-cluster",
		"default=http://"+peers,
		"--quota-backend-bytes", "8589934592", "--log-level", "error")
	return err
}

// open the store as a controller does.
func (w *world) open(ctx context.Context) (store.Store, func() error, error) {
	if w.shared {
		st, err := store.OpenEtcd(ctx, store.EtcdConfig{Endpoints: []string{w.etcdURL}, Prefix: "/godwit/"})
		if err != nil {
			return nil, nil, err
		}
		return st, st.Close, nil
	}
	st, err := store.Open(w.state(0, "records.db"))
	if err != nil {
		return nil, nil, err
	}
	return st, st.Close, nil
}

// seed writes the records of nodes; of a file only while no controller has it.
func (w *world) seed(ctx context.Context, from, to int) error {
	st, end, err := w.open(ctx)
	if err != nil {
		return err
	}
	var group errgroup.Group
	group.SetLimit(256)
	for node := from; node < to; node++ {
		for i := range vmsOfNode {
			group.Go(func() error {
				rec := recordOf(node, i, max(to, 1))
				_, err := st.Apply(ctx, rec.GetVm(), 0, transition.Change{Record: rec})
				return err
			})
		}
	}
	return errors.Join(group.Wait(), end())
}

func (w *world) startControllers(ctx context.Context) error {
	w.controllers, w.addresses = nil, nil
	for i := range w.count() {
		address, err := freeAddress()
		if err != nil {
			return err
		}
		w.addresses = append(w.addresses, address)
		if err := w.join(ctx, i); err != nil {
			return err
		}
		slow := w.slow
		if w.shared { // it syncs nothing itself
			slow = 0
		}
		p, err := launch(ctx, w.at("log"), fmt.Sprint("c", i), address, slow, filepath.Join(w.root, "bin", "godwitd"),
			"-config", w.config(i))
		if err != nil {
			return err
		}
		w.controllers = append(w.controllers, p)
	}
	return nil
}

// join gets the certificate of a further controller from the first one, and writes its configuration.
func (w *world) join(ctx context.Context, i int) error {
	if _, err := os.Stat(w.state(i, "pki/node.crt")); errors.Is(err, os.ErrNotExist) {
		authority, err := pki.OpenAuthority(w.state(0, "pki"))
		if err != nil {
			return err
		}
		token, err := authority.Token(fmt.Sprint("c", i), time.Hour, true)
		if err != nil {
			return err
		}
		if _, err := pki.Join(ctx, w.state(i, "pki"), w.addresses[0], token, []string{"127.0.0.1"}); err != nil {
			return err
		}
	}
	text := fmt.Sprintf("node = \"c%d\"\nstate_dir = %q\nrun_dir = %q\nram_dir = %q\nram_size = "+
		"\"64MiB\"\n[log]\nlevel = \"warn\"\n[containerd]\naddress = %q\n[controller]\nlisten = %q\n",
		i, w.state(i, ""), w.at(fmt.Sprint("c", i), "run"), w.at(fmt.Sprint("c", i), "ram"), w.at("no-containerd.sock"),
		w.addresses[i])
	if w.shared {
		text += fmt.Sprintf("[controller.etcd]\nendpoints = [%q]\n", w.etcdURL)
	}
	w.mounts = append(w.mounts, w.at(fmt.Sprint("c", i), "ram"))
	return os.WriteFile(w.config(i), []byte(text), 0o600)
}

func (w *world) config(i int) string { return w.at(fmt.Sprint("c", i), "config.toml") }

// stopControllers ends them; the records stay.
func (w *world) stopControllers() error {
	var errs []error
	for _, p := range w.controllers {
		errs = append(errs, p.stop())
	}
	w.controllers = nil
	return errors.Join(errs...)
}

func (w *world) close() error {
	errs := []error{w.stopControllers()}
	if w.etcd != nil {
		errs = append(errs, w.etcd.stop())
	}
	for _, at := range w.mounts {
		_ = unix.Unmount(at, unix.MNT_DETACH)
	}
	return errors.Join(errs...)
}

// programs are all that is paid for: the controllers, and what keeps their records.
func (w *world) programs() []*program {
	if w.etcd == nil {
		return w.controllers
	}
	return append([]*program{w.etcd}, w.controllers...)
}

// used is the CPU time of all programs, in seconds.
func (w *world) used() (sum float64, err error) {
	for _, p := range w.programs() {
		s, err := p.cpu()
		if err != nil {
			return 0, err
		}
		sum += s
	}
	return sum, nil
}

// space is what etcd's keys and their history take, in bytes, before and after a compaction.
func (w *world) space(ctx context.Context) (before, after int64, err error) {
	client, err := etcd.New(etcd.Config{Endpoints: []string{w.etcdURL}, Logger: zap.NewNop(), DialTimeout: startBound})
	if err != nil {
		return 0, 0, err
	}
	defer client.Close()
	status, err := client.Status(ctx, w.etcdURL)
	if err != nil {
		return 0, 0, err
	}
	before = status.DbSizeInUse
	if _, err := client.Compact(ctx, status.Header.Revision, etcd.WithCompactPhysical()); err != nil {
		return before, 0, err
	}
	// What is free shows after the next commit of etcd's own.
	select {
	case <-ctx.Done():
		return before, 0, ctx.Err()
	case <-time.After(time.Second):
	}
	status, err = client.Status(ctx, w.etcdURL)
	return before, status.DbSizeInUse, err
}
