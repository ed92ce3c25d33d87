package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/containerd/errdefs"
	gocni "github.com/containerd/go-cni"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"godwit.dev/godwit/api/config"
	"godwit.dev/godwit/api/spec"
)

// HookVerb is the verb of godwit that is a container's OCI hook. It makes the network of a VM in its namespace, and
// gives it back, as nerdctl's hook does. So it is made anew by each start, and by a wake on this node.
const HookVerb = "oci-hook"

// networkPlan is the network that the hooks of a container make.
type networkPlan struct {
	name string // of CNI's configuration
	spec oci.SpecOpts
}

// planNetwork reads CNI's configuration. Without one a VM has no network: nil, unless it has ports.
func (c *Client) planNetwork(m *making) (*networkPlan, error) {
	if m.Network == "none" {
		return nil, nil
	}
	cfg, err := c.load()
	if err != nil {
		return nil, err
	}
	found, err := hasCNI(cfg.CNI.ConfDir)
	if err != nil {
		return nil, err
	}
	if !found {
		if len(m.ports) > 0 || m.Network != "" {
			return nil, fmt.Errorf("-p and --network need a network, and %s (cni.conf_dir) has no configuration of CNI. "+
				"Put one there (docs/how-to/install.md), or leave both away: %w", cfg.CNI.ConfDir, errdefs.ErrFailedPrecondition)
		}
		m.note("the VM has no network: %s (cni.conf_dir) has no configuration of CNI", cfg.CNI.ConfDir)
		return nil, nil
	}
	plugins, err := openCNI(cfg.CNI)
	if err != nil {
		return nil, err
	}
	name, publishes := "", false
	for _, n := range plugins.GetConfig().Networks {
		if n.Config.Name == "cni-loopback" {
			continue
		}
		name = n.Config.Name
		for _, p := range n.Config.Plugins {
			publishes = publishes || p.Network.Capabilities["portMappings"]
		}
	}
	if len(m.ports) > 0 && !publishes {
		return nil, fmt.Errorf("-p: network %s of %s publishes no ports: none of its plugins has the capability "+
			"portMappings. Add {\"type\": \"portmap\", \"capabilities\": {\"portMappings\": true}} to its plugins: %w", name,
			cfg.CNI.ConfDir, errdefs.ErrFailedPrecondition)
	}
	program, err := hookProgram()
	if err != nil {
		return nil, err
	}
	return &networkPlan{name: name, spec: c.hooks(program, name, m)}, nil
}

// hasCNI reports whether there is a file that CNI would read.
func hasCNI(dir string) (bool, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("look for CNI's configuration: %w", unwrapped(err))
	}
	return slices.ContainsFunc(entries, func(e fs.DirEntry) bool {
		return slices.Contains([]string{".conf", ".conflist", ".json"}, filepath.Ext(e.Name()))
	}), nil
}

func openCNI(cfg config.CNI) (gocni.CNI, error) {
	plugins, err := gocni.New(gocni.WithPluginConfDir(cfg.ConfDir), gocni.WithPluginDir([]string{cfg.BinDir}),
		gocni.WithMinNetworkCount(2), gocni.WithLoNetwork, gocni.WithDefaultConf)
	if err != nil {
		return nil, fmt.Errorf("CNI configuration in %s (cni.conf_dir): %w: %w", cfg.ConfDir, err,
			errdefs.ErrFailedPrecondition)
	}
	return plugins, nil
}

// hookProgram is the path of godwit, which runs the hooks: this program, or the one in PATH.
func hookProgram() (string, error) {
	self, err := os.Executable()
	if err == nil && filepath.Base(self) == "godwit" {
		return self, nil
	}
	program, err := exec.LookPath("godwit")
	if err == nil {
		program, err = filepath.Abs(program)
	}
	if err != nil {
		return "", fmt.Errorf("the network of a VM is made by the program godwit: %w. Install it in PATH: %w", err,
			errdefs.ErrFailedPrecondition)
	}
	return program, nil
}

// hooks are those of the container, and what they need to know.
func (c *Client) hooks(program, name string, m *making) oci.SpecOpts {
	return func(_ context.Context, _ oci.Client, _ *containers.Container, s *oci.Spec) error {
		networks, err := json.Marshal([]string{name})
		if err != nil {
			return err
		}
		ports, err := json.Marshal(m.ports)
		if err != nil {
			return err
		}
		if s.Annotations == nil {
			s.Annotations = map[string]string{}
		}
		s.Annotations[LabelNetworks], s.Annotations[LabelPorts] = string(networks), string(ports)
		s.Annotations[LabelNamespace] = c.namespace
		hook := func(kind string) specs.Hook {
			args := []string{"godwit", HookVerb, kind}
			if c.configPath != "" {
				args = []string{"godwit", "--config", c.configPath, HookVerb, kind}
			}
			return specs.Hook{Path: program, Args: args, Env: hookEnv()}
		}
		if s.Hooks == nil {
			s.Hooks = &specs.Hooks{}
		}
		s.Hooks.CreateRuntime = append(s.Hooks.CreateRuntime, hook("createRuntime"))
		s.Hooks.Poststop = append(s.Hooks.Poststop, hook("postStop"))
		if path, ok := resolvers(); ok {
			s.Mounts = append(s.Mounts, specs.Mount{Type: "bind", Source: path, Destination: "/etc/resolv.conf",
				Options: []string{"rbind", "ro"}})
		}
		return nil
	}
}

// hookEnv lets CNI's plugins find iptables, and godwit its configuration.
func hookEnv() []string {
	env := []string{"PATH=" + os.Getenv("PATH")}
	if v := os.Getenv("GODWIT_CONFIG"); v != "" {
		env = append(env, "GODWIT_CONFIG="+v)
	}
	return env
}

// resolvers is a file of the host with name servers that a VM reaches: those at a loopback address are the host's
// alone. systemd keeps the real ones in another file.
func resolvers() (path string, ok bool) {
	for _, path := range []string{"/etc/resolv.conf", "/run/systemd/resolve/resolv.conf"} {
		data, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		for line := range bytes.Lines(data) {
			f := bytes.Fields(line)
			if len(f) > 1 && string(f[0]) == "nameserver" && !bytes.HasPrefix(f[1], []byte("127.")) && string(f[1]) != "::1" {
				return path, true
			}
		}
	}
	return "", false
}

// Hook is the hook itself: kind is createRuntime or postStop, in is the state of the container that the runtime tells.
func (c *Client) Hook(ctx context.Context, kind string, in io.Reader) error {
	var state specs.State
	if err := json.NewDecoder(in).Decode(&state); err != nil {
		return fmt.Errorf("read the container's state: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	cfg, err := c.load()
	if err != nil {
		return err
	}
	plugins, err := openCNI(cfg.CNI)
	if err != nil {
		return err
	}
	ports, err := portsOf(state.Annotations)
	if err != nil {
		return err
	}
	id := state.Annotations[LabelNamespace] + "-" + state.ID // as ctr, nerdctl and godwitd call it
	opts := []gocni.NamespaceOpts{}
	if len(ports) > 0 {
		opts = append(opts, gocni.WithCapabilityPortMap(ports))
	}
	switch kind {
	case "createRuntime":
		return setUp(ctx, plugins, id, fmt.Sprintf("/proc/%d/ns/net", state.Pid), opts, had(state.Annotations))
	case "postStop":
		if err := plugins.Remove(ctx, id, "", opts...); err != nil {
			return fmt.Errorf("give the network back: %w", err)
		}
		return nil
	}
	return fmt.Errorf("hook %q: createRuntime or postStop: %w", kind, errdefs.ErrInvalidArgument)
}

// had asks for the addresses and the MAC that the guest has already: one that moved here has connections open.
func had(annotations map[string]string) (opts []gocni.NamespaceOpts) {
	if all := annotations[spec.AnnotationAddresses]; all != "" {
		opts = append(opts, gocni.WithCapability("ips", strings.Split(all, ",")))
	}
	if mac := annotations[spec.AnnotationMAC]; mac != "" {
		opts = append(opts, gocni.WithCapability("mac", mac))
	}
	return opts
}

// setUp makes the network. Where the plugins cannot give what the guest had, they give what they like, and the guest is
// re-addressed.
func setUp(ctx context.Context, plugins gocni.CNI, id, path string, opts, had []gocni.NamespaceOpts) error {
	_, err := plugins.Setup(ctx, id, path, slices.Concat(opts, had)...)
	if err != nil && len(had) > 0 {
		if err := plugins.Remove(ctx, id, path, opts...); err != nil {
			return fmt.Errorf("make the network anew: %w", err)
		}
		_, err = plugins.Setup(ctx, id, path, opts...)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("make the network: %w", err), plugins.Remove(ctx, id, path, opts...))
	}
	return nil
}
