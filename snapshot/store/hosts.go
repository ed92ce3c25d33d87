package store

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"
)

// endpoint is how one host is spoken to.
type endpoint struct {
	scheme, host string
	prefix       string // of paths, "/v2" but for override_path
	namespace    string // of a mirror: the registry that it stands for
	pull, push   bool

	cas         []string
	clients     [][2]string // certificate and key
	skipVerify  bool
	header      http.Header
	dialTimeout time.Duration
}

func (e endpoint) plain() bool { return e.scheme == "http" }

// address of a call: a session's own address is taken as it is.
func (e endpoint) address(u, repository string) string {
	if strings.Contains(u, "://") {
		return u
	}
	return fmt.Sprintf("%s://%s%s/%s/%s", e.scheme, e.host, e.prefix, repository, u)
}

// rewrite is the last thing before a request of this host leaves. A path may not begin with the
// prefix. It is then the greeting of the authentication, which knows no prefix. Or it is an
// address from a registry that does not know under which path it is served.
func (e endpoint) rewrite(req *http.Request) {
	rest, ok := strings.CutPrefix(req.URL.Path, "/v2/")
	if ok && !strings.HasPrefix(req.URL.Path, e.prefix+"/") {
		req.URL.Path, req.URL.RawPath = e.prefix+"/"+rest, ""
	}
	if e.namespace != "" {
		q := req.URL.Query()
		q.Set("ns", e.namespace)
		req.URL.RawQuery = q.Encode()
	}
	for k, v := range e.header {
		req.Header[k] = v
	}
}

// endpointsOf reads hosts.toml of a registry as containerd does: mirrors in the order of
// the file, then the server.
func endpointsOf(cfg Config, registry string) ([]endpoint, error) {
	server := endpoint{scheme: "https", host: registry, prefix: "/v2", pull: true, push: true}
	if cfg.PlainHTTP {
		server.scheme = "http"
	}
	if cfg.HostsDir == "" {
		return []endpoint{server}, nil
	}
	dir, data, err := hostsFile(cfg.HostsDir, registry)
	if err != nil || data == nil {
		return []endpoint{server}, err
	}
	all, err := parseHosts(dir, data, server)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(dir, hostsToml), err)
	}
	return all, nil
}

const hostsToml = "hosts.toml"

// hostsFile finds the directory of a registry below root; nil data: there is none.
func hostsFile(root, registry string) (dir string, data []byte, err error) {
	for _, n := range hostNames(registry) {
		dir = filepath.Join(root, n)
		data, err = os.ReadFile(filepath.Join(dir, hostsToml))
		if err == nil || !errors.Is(err, fs.ErrNotExist) {
			return dir, data, err
		}
	}
	return "", nil, nil
}

// hostNames are the directories in which containerd looks for a registry, and the host without
// its port. containerd cuts at the last colon, also inside of an IPv6 address without a port.
func hostNames(registry string) []string {
	i := strings.LastIndex(registry, ":")
	if i < 0 {
		return []string{registry, "_default"}
	}
	names := []string{registry[:i] + "_" + registry[i+1:] + "_", registry}
	if host, _, err := net.SplitHostPort(registry); err == nil && strings.HasPrefix(registry, "[") {
		names = append(names, "["+host+"]")
	} else if err == nil {
		names = append(names, host)
	}
	return append(names, "_default")
}

// hostConfig is one host of the file. What this does not name is another program's.
type hostConfig struct {
	Capabilities []string       `toml:"capabilities"`
	CA           any            `toml:"ca"`
	Client       any            `toml:"client"`
	SkipVerify   bool           `toml:"skip_verify"`
	Header       map[string]any `toml:"header"`
	OverridePath bool           `toml:"override_path"`
	DialTimeout  string         `toml:"dial_timeout"`
}

func parseHosts(dir string, data []byte, server endpoint) ([]endpoint, error) {
	var file struct {
		hostConfig
		Server string                `toml:"server"`
		Host   map[string]hostConfig `toml:"host"`
	}
	if err := toml.Unmarshal(data, &file); err != nil {
		return nil, fmt.Errorf("%w: %w", err, errdefs.ErrInvalidArgument)
	}
	var all []endpoint
	for _, u := range hostOrder(data) {
		e, err := file.Host[u].endpoint(dir, u)
		if err != nil {
			return nil, err
		}
		if e.host != server.host {
			e.namespace = server.host
		}
		all = append(all, e)
	}
	if file.Server == "" {
		file.Server = server.scheme + "://" + server.host
	}
	last, err := file.endpoint(dir, file.Server)
	if err != nil {
		return nil, err
	}
	return append(all, last), nil
}

// hostOrder lists the keys of [host."URL"] as they stand in the file.
func hostOrder(data []byte) []string {
	var p unstable.Parser
	p.Reset(data)
	var urls []string
	seen := map[string]bool{}
	for p.NextExpression() {
		e := p.Expression()
		if e.Kind != unstable.Table {
			continue
		}
		var keys []string
		for it := e.Key(); it.Next(); {
			keys = append(keys, string(it.Node().Data))
		}
		if len(keys) > 1 && keys[0] == "host" && !seen[keys[1]] {
			seen[keys[1]] = true
			urls = append(urls, keys[1])
		}
	}
	return urls
}

func (c hostConfig) endpoint(dir, address string) (endpoint, error) {
	if !strings.Contains(address, "://") {
		address = "https://" + address
	}
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return endpoint{}, fmt.Errorf("host %q: not an http or https URL: %w", address, errdefs.ErrInvalidArgument)
	}
	e := endpoint{scheme: u.Scheme, host: u.Host, prefix: strings.TrimSuffix(u.Path, "/"), skipVerify: c.SkipVerify,
		header: http.Header{}}
	if !c.OverridePath && !strings.HasSuffix(e.prefix, "/v2") {
		e.prefix += "/v2"
	}
	e.pull, e.push = len(c.Capabilities) == 0, len(c.Capabilities) == 0
	for _, name := range c.Capabilities {
		switch name {
		case "pull":
			e.pull = true
		case "push":
			e.push = true
		case "resolve", "referrers": // godwit asks by digest
		default:
			return endpoint{}, fmt.Errorf("host %q: unknown capability %q: %w", address, name, errdefs.ErrInvalidArgument)
		}
	}
	if c.DialTimeout != "" {
		if e.dialTimeout, err = time.ParseDuration(c.DialTimeout); err != nil {
			return endpoint{}, fmt.Errorf("host %q: dial_timeout: %w: %w", address, err, errdefs.ErrInvalidArgument)
		}
	}
	if e.cas, err = texts(c.CA); err != nil {
		return endpoint{}, fmt.Errorf("host %q: ca: %w", address, err)
	}
	for i := range e.cas {
		e.cas[i] = siblingPath(dir, e.cas[i])
	}
	for k, v := range c.Header {
		if e.header[http.CanonicalHeaderKey(k)], err = texts(v); err != nil {
			return endpoint{}, fmt.Errorf("host %q: header %s: %w", address, k, err)
		}
	}
	if e.clients, err = clientFiles(dir, c.Client); err != nil {
		return endpoint{}, fmt.Errorf("host %q: client: %w", address, err)
	}
	return e, nil
}

// clientFiles reads "file", ["file", ..] and [["certificate", "key"], ..]: a file alone
// holds both.
func clientFiles(dir string, v any) ([][2]string, error) {
	list, ok := v.([]any)
	if !ok && v != nil {
		list = []any{v}
	}
	var pairs [][2]string
	for _, item := range list {
		names, err := texts(item)
		if err != nil || len(names) == 0 || len(names) > 2 {
			return nil, fmt.Errorf("neither a file nor a certificate and its key: %w", errdefs.ErrInvalidArgument)
		}
		pair := [2]string{siblingPath(dir, names[0]), siblingPath(dir, names[len(names)-1])}
		if names[len(names)-1] == "" {
			pair[1] = pair[0]
		}
		pairs = append(pairs, pair)
	}
	return pairs, nil
}

// texts reads a text or a list of them.
func texts(v any) ([]string, error) {
	switch v := v.(type) {
	case nil:
		return nil, nil
	case string:
		return []string{v}, nil
	case []any:
		var all []string
		for _, item := range v {
			s, ok := item.(string)
			if !ok {
				return nil, fmt.Errorf("%v is no text: %w", item, errdefs.ErrInvalidArgument)
			}
			all = append(all, s)
		}
		return all, nil
	default:
		return nil, fmt.Errorf("%v is neither a text nor a list of them: %w", v, errdefs.ErrInvalidArgument)
	}
}

func siblingPath(dir, path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(dir, path)
}
