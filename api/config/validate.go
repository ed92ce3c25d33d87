package config

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"
)

// MinVM is the least RAM of a VM, PageSize what RAM is a multiple of.
const (
	MinVM    Size = 64 << 20
	MaxVM    Size = 16 << 40
	PageSize Size = 2 << 20

	// MinBandwidth keeps a transfer from looking as if it stood still.
	MinBandwidth Size = 64 << 10
)

const (
	// maxSocket is what sockaddr_un holds, less the closing zero.
	maxSocket = 107
	// socketName bounds the file name of any socket in a VM's run directory.
	socketName = 24
)

// layoutPrefix marks a directory where a repository of a registry may stand too.
const layoutPrefix = "oci-layout:"

// nodeName is bounded by maxName: a bound in the expression costs each shim memory.
var nodeName = regexp.MustCompile(`^[a-zA-Z0-9]([a-zA-Z0-9._-]*[a-zA-Z0-9])?$`)

const maxName = 253

func invalid(key, format string, args ...any) error {
	return fmt.Errorf("%s: %s: %w", key, fmt.Sprintf(format, args...), errdefs.ErrInvalidArgument)
}

func (c *Config) validate() error {
	for _, check := range []func() error{
		c.validateNode, c.validatePaths, c.validateChoices, c.validateSizes, c.validateTimeouts,
		c.validateRegistry, c.validateRetention, c.validateSeal, c.validateController, c.validatePeer, c.validateMetrics,
		c.validateStdio, c.validateLogs,
	} {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

func (c *Config) validateNode() error {
	if c.Node != "" && (len(c.Node) > maxName || !nodeName.MatchString(c.Node)) {
		return invalid("node", "%q is not a host name: use letters, digits, dot, dash, underscore", c.Node)
	}
	return nil
}

func (c *Config) validatePaths() error {
	for _, p := range []struct {
		key, value string
		required   bool
	}{
		{"state_dir", c.StateDir, true}, {"run_dir", c.RunDir, true}, {"ram_dir", c.RAMDir, false},
		{"guest.kernel", c.Guest.Kernel, true}, {"guest.initrd", c.Guest.Initrd, true},
		{"vmm.firmware", c.VMM.Firmware, false}, {"vmm.firmware_vars", c.VMM.FirmwareVars, false},
		{"vmm.cloud_hypervisor_firmware", c.VMM.CloudHypervisorFirmware, false},
		{"vmm.data_dir", c.VMM.DataDir, false}, {"registry.ca_file", c.Registry.CAFile, false},
		{"registry.docker_config", c.Registry.DockerConfig, false}, {"registry.hosts_dir", c.Registry.HostsDir, false},
		{"registry.layout", c.Registry.Layout, false},
		{"tls.ca", c.TLS.CA, false}, {"tls.cert", c.TLS.Cert, false}, {"tls.key", c.TLS.Key, false},
		{"containerd.address", c.Containerd.Address, true},
		{"cni.conf_dir", c.CNI.ConfDir, true}, {"cni.bin_dir", c.CNI.BinDir, true},
	} {
		if p.value == "" && !p.required {
			continue
		}
		if !filepath.IsAbs(p.value) || filepath.Clean(p.value) != p.value {
			return invalid(p.key, "%q is not a clean absolute path", p.value)
		}
	}
	longest := filepath.Join(c.VMRunDir("", ""), strings.Repeat("x", socketName))
	if len(longest) > maxSocket {
		return invalid("run_dir", "%q is too long for the sockets in it: use at most %d bytes", c.RunDir,
			len(c.RunDir)-(len(longest)-maxSocket))
	}
	if len(c.Containerd.Address) > maxSocket {
		return invalid("containerd.address", "a socket's path has at most %d bytes", maxSocket)
	}
	for key, program := range map[string]string{"vmm.qemu": c.VMM.QEMU, "vmm.cloud_hypervisor": c.VMM.CloudHypervisor} {
		if program == "" || (strings.Contains(program, "/") && !filepath.IsAbs(program)) {
			return invalid(key, "%q is neither a program's name nor an absolute path", program)
		}
	}
	if c.Containerd.Runtime == "" {
		return invalid("containerd.runtime", "name a runtime, such as io.containerd.godwit.v1")
	}
	return nil
}

func (c *Config) validateChoices() error {
	for _, f := range []struct {
		key, value string
		allowed    []string
	}{
		{"host_network", c.HostNetwork, []string{"loopback", "refuse"}},
		{"network.spoof", c.Network.Spoof, []string{"", "deny", "allow"}},
		{"vmm.kind", c.VMM.Kind, []string{"auto", "qemu", "cloud-hypervisor"}},
		{"vmm.accel", c.VMM.Accel, []string{"auto", "kvm", "tcg"}},
		{"worker.tracking", c.Worker.Tracking, []string{"auto", "uffd", "soft-dirty", "content"}},
		{"worker.restore", c.Worker.Restore, RestoreModes()},
		{"move.pull", c.Move.Pull, []string{PullAny, PullController}},
		{"template.boot.mode", c.Template.Boot.Mode, []string{"on", "off"}},
		{"template.image.mode", c.Template.Image.Mode, []string{"on", "off"}},
		{"log.level", c.Log.Level, []string{"debug", "info", "warn", "error"}},
	} {
		if !slices.Contains(f.allowed, f.value) {
			return invalid(f.key, "%q is not one of %s", f.value, strings.Join(f.allowed, ", "))
		}
	}
	if p := c.RAMHugePages; p != 0 && p != 2<<20 && p != 1<<30 {
		return invalid("ram_huge_pages", "%s: use 2MiB or 1GiB", p)
	}
	if u := c.VMM.FirstUser; u < 0 || u > 0 && u < 1000 || u > 0x7fff0000 {
		return invalid("vmm.first_user", "%d: use 0 for root, or a user from 1000 to %d", u, 0x7fff0000)
	}
	if strings.ContainsAny(c.Guest.Cmdline, "\n\x00") {
		return invalid("guest.cmdline", "it holds a line break or a zero byte")
	}
	return nil
}

func (c *Config) validateSizes() error {
	for _, s := range []struct {
		key             string
		value, min, max Size
	}{
		{"vm.memory", c.VM.Memory, MinVM, MaxVM},
		{"vm.writable_size", c.VM.WritableSize, 64 << 20, 16 << 40},
		{"vm.max_disk", c.VM.MaxDisk, 1 << 20, 16 << 40},
		{"cache.max_size", c.Cache.MaxSize, 64 << 20, 1 << 50},
		{"template.boot.max_size", c.Template.Boot.MaxSize, 64 << 20, 1 << 50},
		{"template.image.max_size", c.Template.Image.MaxSize, 1 << 20, 1 << 40},
		{"worker.memory", c.Worker.Memory, 32 << 20, 1 << 40},
	} {
		if s.value < s.min || s.value > s.max {
			return invalid(s.key, "%s is not between %s and %s", s.value, s.min, s.max)
		}
	}
	if c.RAMSize != 0 && (c.RAMSize < MinVM || c.RAMSize > 1<<50) {
		return invalid("ram_size", "%s is not between %s and %s; 0 takes half of the host's memory", c.RAMSize, MinVM,
			Size(1<<50))
	}
	if o := c.VM.Overhead; o != 0 && (o < 64<<20 || o > MaxVM) {
		return invalid("vm.overhead", "%s is not between %s and %s; 0 grants what a VM may need", o, Size(64<<20), MaxVM)
	}
	if p := c.Cache.Packs; p != 0 && (p < 64<<20 || p > 1<<50) {
		return invalid("cache.packs", "%s is not between %s and %s; 0 keeps none", p, Size(64<<20), Size(1<<50))
	}
	return c.validateCounts()
}

func (c *Config) validateCounts() error {
	for key, n := range map[string]int{
		"template.boot.after": c.Template.Boot.After, "template.boot.max": c.Template.Boot.Max,
		"template.image.max": c.Template.Image.Max,
	} {
		if n < 1 || n > 1000 {
			return invalid(key, "%d is not between 1 and 1000", n)
		}
	}
	if d := time.Duration(c.Worker.PauseBudget); d < 0 || d > MaxPauseBudget {
		return invalid("worker.pause_budget", "%v is not between 0 and 1m", d)
	}
	if b := c.Worker.Bandwidth; b != 0 && b < MinBandwidth {
		return invalid("worker.bandwidth", "%s is less than %s a second; 0 sets no limit", b, MinBandwidth)
	}
	if n := c.Worker.Concurrency; n < 1 || n > 64 {
		return invalid("worker.concurrency", "%d is not between 1 and 64", n)
	}
	return nil
}

// MaxPauseBudget is the most that worker.pause_budget may be, and the budget of an order.
const MaxPauseBudget = time.Minute

// Bounds of what timeouts.* and retention.grace may be.
const (
	minTimeout = time.Second
	maxTimeout = 24 * time.Hour
	minGrace   = time.Minute
)

func (c *Config) validateTimeouts() error {
	for _, t := range []struct {
		key   string
		value Duration
	}{
		{"timeouts.boot", c.Timeouts.Boot}, {"timeouts.operation", c.Timeouts.Operation},
		{"timeouts.abort", c.Timeouts.Abort}, {"timeouts.daemon", c.Timeouts.Daemon},
		{"timeouts.nic", c.Timeouts.NIC}, {"timeouts.ready", c.Timeouts.Ready}, {"timeouts.notify", c.Timeouts.Notify},
	} {
		if v := time.Duration(t.value); v < minTimeout || v > maxTimeout {
			return invalid(t.key, "%s is not between 1s and 24h: write text such as \"30s\"", v)
		}
	}
	return nil
}

func (c *Config) validateRegistry() error {
	r := c.Registry
	if r.Repository != "" && r.Layout != "" {
		return invalid("registry", "repository and layout are both set: keep one")
	}
	if r.PlainHTTP && r.CAFile != "" {
		return invalid("registry.plain_http", "it is set together with ca_file: keep one")
	}
	if r.Repository == "" {
		return nil
	}
	if !repository.MatchString(r.Repository) {
		return invalid("registry.repository", "%q is not HOST[:PORT]/PATH in lower case without scheme, tag and digest",
			r.Repository)
	}
	return nil
}

func (c *Config) validateRetention() error {
	r := c.Retention
	switch {
	case r.Keep < 1 || r.Keep > 10000:
		return invalid("retention.keep", "%d is not between 1 and 10000", r.Keep)
	case r.KeepFor < 0:
		return invalid("retention.keep_for", "%s is negative", r.KeepFor)
	case r.Ended < 0:
		return invalid("retention.ended", "%s is negative; 0s keeps what an ended VM has left", r.Ended)
	case time.Duration(r.Grace) < minGrace:
		return invalid("retention.grace", "%s is less than 1m: an operation that was just opened would lose its packs",
			r.Grace)
	}
	return nil
}

var repository = regexp.MustCompile(
	`^(\[[0-9a-fA-F:.]+\]|[a-zA-Z0-9.-]+)(:[0-9]{1,5})?(/[a-z0-9]+([._-]+[a-z0-9]+)*)+$`)

func (c *Config) validateSeal() error {
	files := map[string][]string{"seal.key_files": c.Seal.KeyFiles, "sign.trusted": c.Sign.Trusted}
	for key, path := range map[string]string{"seal.identity_file": c.Seal.IdentityFile, "sign.key_file": c.Sign.KeyFile} {
		if path != "" {
			files[key] = []string{path}
		}
	}
	if c.Sign.Required && c.Sign.KeyFile == "" && len(c.Sign.Trusted) == 0 {
		return invalid("sign.required", "no key is trusted: set sign.trusted or sign.key_file")
	}
	for key, paths := range files {
		for _, path := range paths {
			if !filepath.IsAbs(path) || filepath.Clean(path) != path {
				return invalid(key, "%q is not a clean absolute path", path)
			}
		}
	}
	for _, r := range c.Seal.Recipients {
		if !strings.HasPrefix(r, "age1") {
			return invalid("seal.recipients", "%q is no recipient of age: it begins with age1", r)
		}
	}
	return nil
}

func (c *Config) validateController() error {
	if c.Controller.Listen != "" && c.Controller.Address != "" {
		return invalid("controller", "listen and address are both set: this node either holds the store or names the node "+
			"that does")
	}
	if c.Controller.Listen != "" {
		if err := hostPort("controller.listen", c.Controller.Listen); err != nil {
			return err
		}
	}
	for _, address := range c.Controller.Addresses() {
		if err := hostPort("controller.address", address); err != nil {
			return err
		}
	}
	for _, at := range c.Controller.Repositories {
		if dir, ok := strings.CutPrefix(at, layoutPrefix); ok && filepath.IsAbs(dir) && filepath.Clean(dir) == dir || !ok &&
			repository.MatchString(at) {
			continue
		}
		return invalid("controller.repositories",
			"%q is neither HOST[:PORT]/PATH in lower case, as registry.repository, nor %s and a clean absolute path, as "+
				"registry.layout", at, layoutPrefix)
	}
	for key, n := range map[string]int{"controller.records_per_node": c.Controller.RecordsPerNode,
		"controller.operations_per_node": c.Controller.OperationsPerNode} {
		if n < 1 {
			return invalid(key, "%d is less than 1", n)
		}
	}
	if err := c.validateLoss(); err != nil {
		return err
	}
	if err := c.validateTracing(); err != nil {
		return err
	}
	return c.validateEtcd()
}

func (c *Config) validatePeer() error {
	for key, value := range map[string]string{"peer.listen": c.Peer.Listen, "peer.advertise": c.Peer.Advertise} {
		if value == "" {
			continue
		}
		if err := hostPort(key, value); err != nil {
			return err
		}
	}
	if c.Peer.Listen == "" && c.Peer.Advertise != "" {
		return invalid("peer.advertise", "it is set without peer.listen")
	}
	reached := cmp.Or(c.Peer.Advertise, c.Peer.Listen)
	host, _, _ := net.SplitHostPort(reached)
	if addr, err := netip.ParseAddr(host); c.Peer.Listen != "" && (host == "" || err == nil && addr.IsUnspecified()) {
		return invalid("peer.advertise", "%q is no address that other nodes can reach: name one", reached)
	}
	for key, n := range map[string]int{"move.parallel": c.Move.Parallel, "move.outgoing": c.Move.Outgoing,
		"move.incoming": c.Move.Incoming} {
		if n < 1 || n > 1000 {
			return invalid(key, "%d is not between 1 and 1000", n)
		}
	}
	return nil
}

func (c *Config) validateMetrics() error {
	if c.Metrics.Address == "" {
		return nil
	}
	if err := hostPort("metrics.address", c.Metrics.Address); err != nil {
		return err
	}
	if c.MetricsTLS() && (c.TLS.Cert == "" || c.TLS.Key == "" || c.TLS.CA == "") {
		return invalid("metrics.address", "%s is not 127.0.0.1 or ::1: set tls.ca, tls.cert and tls.key too, it is served "+
			"with mutual TLS then", c.Metrics.Address)
	}
	return nil
}

// MetricsTLS reports whether metrics.address reaches beyond this host, so that it is
// served with mutual TLS only.
func (c *Config) MetricsTLS() bool {
	return c.Metrics.Address != "" && !Loopback(c.Metrics.Address)
}

// Loopback reports whether only this host reaches HOST:PORT. A name does not count: it may mean another host tomorrow.
func Loopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.IsLoopback()
}

func hostPort(key, value string) error {
	_, port, err := net.SplitHostPort(value)
	if err != nil {
		return invalid(key, "%q is not HOST:PORT", value)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return invalid(key, "%q has no port between 1 and 65535", value)
	}
	return nil
}
