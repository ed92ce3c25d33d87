package client

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"godwit.dev/godwit/api/spec"
)

// Labels and annotations of a container that nerdctl reads too.
const (
	LabelLogURI    = "nerdctl/log-uri"   // where the output of a detached VM goes
	LabelNerdctl   = "nerdctl/state-dir" // of what nerdctl keeps on the host: the container is nerdctl's
	LabelNamespace = "nerdctl/namespace"
	LabelNetworks  = "nerdctl/networks" // JSON of a list of names
	labelHostname  = "nerdctl/hostname"
	labelPlatform  = "nerdctl/platform"
	labelStop      = "nerdctl/stop-timeout" // seconds

	// LabelMade marks a container that this package has made, and may remove.
	LabelMade = "godwit.dev/made-by"
	// labelManaged marks a container that godwitd has made, for a VM of another node.
	labelManaged = "godwit.dev/managed"
)

// VMOptions say what VM is made of an image. Only Image is needed.
type VMOptions struct {
	Image      string
	Command    []string // after the image's entrypoint; empty: the image's own
	Entrypoint []string // instead of the image's; one empty string: none
	Name       string   // also the id of the VM; empty: one is made up
	Env        []string // KEY=VALUE; KEY: as in this process
	Ports      []string // as ParsePort reads them
	Volumes    []string // HOST:PATH:ro, HOST:PATH:copy
	Memory     int64    // bytes that the processes may use; 0: as the configuration says
	CPUs       float64  // of the host; 0: one vCPU
	Network    string   // "": as CNI is configured; "none"
	User       string   // USER[:GROUP]
	WorkDir    string
	Hostname   string // empty: Name
	Labels     map[string]string
	Annotation map[string]string
	ReadOnly   bool          // the root file system
	Terminal   bool          // the process gets a terminal
	Size       *TerminalSize // that it begins with; nil: it has none until Resize
	StopSignal string        // empty: the image's, else SIGTERM
	// StopTimeout is how long Stop waits before it kills, in whole seconds; nil: the client's default.
	StopTimeout *time.Duration

	Snapshotter string                        // empty: containerd's default of the namespace
	Pull        string                        // "missing" (the default), "always", "never"
	Insecure    bool                          // as in PullOptions
	Progress    func(PullProgress)            // of a pull
	Note        func(format string, a ...any) // what a user should know and is no error; nil: it is not told
}

// making is a VM that is being made.
type making struct {
	*VMOptions
	name    string
	ports   []Port
	volumes []volume
	network *networkPlan // nil: none
	log     string       // URI; empty: none
}

// maxName bounds a name. It is part of names of files and of CNI's ids.
const maxName = 63

// check reads what was said, before anything is fetched or made.
func (o *VMOptions) check() (*making, error) {
	m := &making{VMOptions: o, name: o.Name}
	for _, p := range o.Ports {
		ports, err := ParsePort(p)
		if err != nil {
			return nil, err
		}
		m.ports = append(m.ports, ports...)
	}
	for _, said := range o.Volumes {
		v, err := parseVolume(said)
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(m.volumes, v.hides) {
			return nil, fmt.Errorf("-v %q: another -v has that path of the VM too. Leave one of both away: %w", said,
				errdefs.ErrInvalidArgument)
		}
		m.volumes = append(m.volumes, v)
	}
	if o.Name != "" {
		if err := checkName(o.Name); err != nil {
			return nil, fmt.Errorf("--name: %w", err)
		}
	}
	return m, o.checkLimits(m)
}

func (o *VMOptions) checkLimits(m *making) error {
	switch {
	case o.Network != "" && o.Network != "none" && o.Network != "bridge":
		return fmt.Errorf("--network %q: write bridge, for the network that CNI makes, or none: %w", o.Network,
			errdefs.ErrInvalidArgument)
	case o.Network == "none" && len(m.ports) > 0:
		return fmt.Errorf("-p %s: a VM with --network none has no ports. Leave one of both away: %w", o.Ports[0],
			errdefs.ErrInvalidArgument)
	case o.Memory < 0 || o.Memory > 0 && o.Memory < 4<<20:
		return fmt.Errorf("--memory %d bytes: at least 4m: %w", o.Memory, errdefs.ErrInvalidArgument)
	case math.IsNaN(o.CPUs) || o.CPUs < 0 || o.CPUs > 0 && o.CPUs < 0.01 || o.CPUs > maxCPUs:
		return fmt.Errorf("--cpus %v: from 0.01 to %d: %w", o.CPUs, maxCPUs, errdefs.ErrInvalidArgument)
	case o.Pull != "" && o.Pull != "missing" && o.Pull != "always" && o.Pull != "never":
		return fmt.Errorf("--pull %q: write missing, always or never: %w", o.Pull, errdefs.ErrInvalidArgument)
	}
	return nil
}

func (m *making) note(format string, a ...any) {
	if m.Note != nil {
		m.Note(format, a...)
	}
}

// maxCPUs is what a VM can have.
const maxCPUs = 240

// cpuPeriod is the usual period of a CPU quota, in microseconds.
const cpuPeriod = 100_000

// spec is the OCI spec of the VM.
func (m *making) spec(img containerd.Image) []oci.SpecOpts {
	opts := []oci.SpecOpts{oci.WithDefaultSpec(), oci.WithDefaultUnixDevices, m.process(img),
		oci.WithHostname(m.hostname()), oci.WithAnnotations(m.annotations())}
	for _, v := range m.volumes {
		opts = append(opts, oci.WithMounts([]specs.Mount{v.mount}))
	}
	if m.Memory > 0 {
		opts = append(opts, oci.WithMemoryLimit(uint64(m.Memory)))
	}
	if m.CPUs > 0 {
		opts = append(opts, oci.WithCPUCFS(int64(m.CPUs*cpuPeriod), cpuPeriod))
	}
	if m.ReadOnly {
		opts = append(opts, oci.WithRootFSReadonly())
	}
	if m.network != nil {
		opts = append(opts, m.network.spec)
	}
	return opts
}

// process is the image's own, changed as was said.
func (m *making) process(img containerd.Image) oci.SpecOpts {
	return func(ctx context.Context, client oci.Client, c *containers.Container, s *oci.Spec) error {
		opts := []oci.SpecOpts{oci.WithImageConfigArgs(img, m.Command)}
		if m.Entrypoint != nil {
			args := m.Command
			if m.Entrypoint[0] != "" {
				args = append(append([]string(nil), m.Entrypoint...), args...)
			}
			if len(args) == 0 {
				return fmt.Errorf("--entrypoint \"\": name a command too: %w", errdefs.ErrInvalidArgument)
			}
			opts = []oci.SpecOpts{oci.WithImageConfig(img), oci.WithProcessArgs(args...)}
		}
		opts = append(opts, oci.WithEnv(environment(m.Env)))
		if m.Terminal {
			opts = append(opts, oci.WithTTY)
			if m.Size != nil {
				opts = append(opts, oci.WithTTYSize(int(m.Size.Width), int(m.Size.Height)))
			}
		}
		if m.User != "" {
			opts = append(opts, oci.WithUser(m.User), oci.WithAdditionalGIDs(m.User))
		}
		if m.WorkDir != "" {
			opts = append(opts, oci.WithProcessCwd(m.WorkDir))
		}
		for _, opt := range opts {
			if err := opt(ctx, client, c, s); err != nil {
				return err
			}
		}
		if s.Process == nil || len(s.Process.Args) == 0 {
			return fmt.Errorf("image %s names no command. Name one after the image: %w", m.Image, errdefs.ErrInvalidArgument)
		}
		return nil
	}
}

// environment fills in what is named without a value; what this process has not is left away, as docker does.
func environment(said []string) (env []string) {
	for _, e := range said {
		if strings.Contains(e, "=") {
			env = append(env, e)
		} else if v, ok := os.LookupEnv(e); ok {
			env = append(env, e+"="+v)
		}
	}
	return env
}

func (m *making) hostname() string {
	if m.Hostname != "" {
		return m.Hostname
	}
	return m.name
}

func (m *making) annotations() map[string]string {
	all := maps.Clone(m.Annotation)
	if all == nil {
		all = map[string]string{}
	}
	for _, v := range m.volumes {
		if v.write {
			all[spec.AnnotationPrefix+"volumes"] = "copy"
		}
	}
	return all
}

// labels are those that nerdctl shows, and those of the user.
func (m *making) labels(namespace string) (map[string]string, error) {
	all := maps.Clone(m.Labels)
	if all == nil {
		all = map[string]string{}
	}
	maps.Copy(all, map[string]string{LabelName: m.name, LabelNamespace: namespace, labelHostname: m.hostname(),
		labelPlatform: platforms.DefaultString(), LabelMade: "godwit"})
	if m.log != "" {
		all[LabelLogURI] = m.log
	}
	if m.StopSignal != "" {
		all[containerd.StopSignalLabel] = m.StopSignal
	}
	if m.StopTimeout != nil {
		all[labelStop] = strconv.Itoa(int(m.StopTimeout.Seconds()))
	}
	if m.network != nil {
		ports, err := json.Marshal(m.ports)
		if err != nil {
			return nil, err
		}
		names, err := json.Marshal([]string{m.network.name})
		if err != nil {
			return nil, err
		}
		all[LabelNetworks] = string(names)
		if len(m.ports) > 0 {
			all[LabelPorts] = string(ports)
		}
	}
	return all, nil
}
