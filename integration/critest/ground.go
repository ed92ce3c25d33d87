// Package critest runs the conformance suites of Kubernetes' runtime interface: critest of cri-tools, and containerd's
// own suite. Each runs in the same node with runc, the control, and with the runtime handler under test.
package critest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/integration/images"
)

// Control is the runtime handler that the other one is compared with.
const Control = "runc"

// certs is where a node's containerd reads how it reaches registries.
const certs = "/etc/containerd/certs.d"

// mirror sends each client of a registry to the one on the wire. So the suites' own names of images serve.
const mirror = `server = "http://%[1]s"
[host."http://%[1]s"]
  capabilities = ["pull", "resolve"]
`

// nriSocket is where plugins of NRI connect; containerd's suite looks there only.
const nriSocket = "/var/run/nri-test.sock"

// config is containerd's part for CRI. Both releases read it.
const config = `[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = 'localhost/` + images.SuitePause + `'
[plugins.'io.containerd.cri.v1.images'.registry]
  config_path = '` + certs + `'
[plugins.'io.containerd.nri.v1.nri']
  disable = false
  socket_path = '` + nriSocket + `'
  plugin_path = '/opt/nri/plugins'
[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true
  drain_exec_sync_io_timeout = '10s'
` + harness.Handlers + `[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.godwit-devices]
  runtime_type = 'io.containerd.godwit.v1'
  privileged_without_host_devices = false
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.godwit-sandbox]
  runtime_type = 'io.containerd.godwit.v1'
  sandboxer = 'shim'
  pod_annotations = ['godwit.dev/*']
  container_annotations = ['godwit.dev/*']
  privileged_without_host_devices = true
`

// Ground is a node on which suites run.
type Ground struct {
	*harness.Node
	h     *harness.Harness
	tools string
	names map[string]string // of images, by what containerd's suite calls them
	stop  func()            // ends the supervision
}

// Open makes the node, with the images of both suites in a registry next to it, or with some: to make all of them takes
// seconds, and a minute in a guest of a guest.
func Open(ctx context.Context, release harness.Release, log func(string, ...any), only ...string) (*Ground, error) {
	return OpenWith(ctx, harness.Options{Release: release, Log: log}, only...)
}

// OpenWith is Open for other programs, or another configuration of godwit. What the suites need is set here.
func OpenWith(ctx context.Context, o harness.Options, only ...string) (_ *Ground, err error) {
	root, err := harness.Root()
	if err != nil {
		return nil, err
	}
	tools := filepath.Join(root, "bin", "tools")
	o.CRI, o.Registry, o.Containerd = true, harness.Direct, fmt.Sprintf(config, filepath.Join(tools, "runc"))
	h, err := harness.Start(ctx, o)
	if err != nil {
		return nil, err
	}
	g := &Ground{Node: h.Node(0), h: h, tools: tools}
	defer func() {
		if err != nil {
			err = errors.Join(err, h.Close())
		}
	}()
	if err := g.fill(ctx, only); err != nil {
		return nil, err
	}
	if err := g.write(); err != nil {
		return nil, err
	}
	if err := g.serveLocal(); err != nil {
		return nil, err
	}
	g.supervise(ctx)
	return g, nil
}

// Build makes a program of the tests, and answers its path.
func (g *Ground) Build(ctx context.Context, name string) (string, error) { return g.h.Build(ctx, name) }

// Close ends the node.
func (g *Ground) Close() error {
	g.stop()
	return g.h.Close()
}

// write makes what is at paths of the node's own: how containerd reaches registries, and the directory where
// containerd's suite looks for the sockets of shims.
func (g *Ground) write() error {
	hosts, run := filepath.Join(g.Root(), certs, "_default"), filepath.Join(g.Root(), "run/containerd")
	if err := errors.Join(os.MkdirAll(hosts, 0o755), os.MkdirAll(run, 0o755)); err != nil {
		return err
	}
	if err := os.Symlink(filepath.Join(g.Dir, "s"), filepath.Join(run, "s")); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(hosts, "hosts.toml"), fmt.Appendf(nil, mirror, harness.RegistryHost), 0o644)
}

// fill puts the images of both suites into the registry, or those alone that are named and the sandbox's.
func (g *Ground) fill(ctx context.Context, only []string) error {
	standin, err := g.h.Build(ctx, "standin")
	if err != nil {
		return err
	}
	all, err := images.ForCritest(standin)
	if err != nil {
		return err
	}
	more, names, err := images.ForContainerd(standin)
	if err != nil {
		return err
	}
	g.names = names
	transport := &http.Transport{DialContext: g.h.Dial}
	defer transport.CloseIdleConnections()
	for _, one := range append(all, more...) {
		if len(only) > 0 && one.Name != images.SuitePause && !slices.Contains(only, "localhost/"+one.Name) {
			continue
		}
		ref, err := name.ParseReference(harness.RegistryHost+"/"+one.Name, name.Insecure)
		if err != nil {
			return err
		}
		image, err := one.Build()
		if err != nil {
			return fmt.Errorf("build image %s: %w", one.Name, err)
		}
		if err := remote.Write(ref, image, remote.WithContext(ctx), remote.WithTransport(transport)); err != nil {
			return fmt.Errorf("push image %s: %w", one.Name, err)
		}
		if one.Name == names["BusyBox"] {
			digest, err := image.Digest()
			if err != nil {
				return err
			}
			g.names["BusyBoxByDigest"] = ref.Context().RepositoryStr() + "@" + digest.String()
		}
	}
	return nil
}

// restartPause is how long the node is without a containerd that has ended: containerd's suite, which kills it, looks
// once in a second whether it is gone.
const restartPause = 3 * time.Second

// supervise starts containerd again whenever it ends, as the manager of a node's services does.
func (g *Ground) supervise(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-ctx.Done():
				return
			case <-g.Containerd.Done():
			}
			select {
			case <-ctx.Done():
				return
			case <-time.After(restartPause):
			}
			_ = g.StartContainerd(ctx) // one that does not start is started again
		}
	}()
	g.stop = func() { cancel(); <-done }
}
