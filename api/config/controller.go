package config

import (
	"net"
	"net/url"
	"path/filepath"
	"strings"
	"time"
)

// Addresses are those of the controllers, each HOST:PORT.
func (c *Control) Addresses() (all []string) {
	for address := range strings.SplitSeq(c.Address, ",") {
		if address = strings.TrimSpace(address); address != "" {
			all = append(all, address)
		}
	}
	return all
}

// minLoss is longer than a node may be silent and count as up.
const minLoss = 20 * time.Second

func (c *Config) validateLoss() error {
	l := &c.NodeLoss
	switch {
	case l.Policy != LossReport && l.Policy != LossNewest:
		return invalid("node_loss.policy", "%q is not %s or %s", l.Policy, LossReport, LossNewest)
	case l.After < Duration(minLoss):
		return invalid("node_loss.after", "%v is less than %v", time.Duration(l.After), minLoss)
	case l.Policy == LossNewest && len(l.Fence) == 0:
		return invalid("node_loss.fence", "a silent node may run its VMs, cut off: policy %s needs a command whose "+
			"success proves that it runs nothing", LossNewest)
	case len(l.Fence) > 0 && (!filepath.IsAbs(l.Fence[0]) || filepath.Clean(l.Fence[0]) != l.Fence[0]):
		return invalid("node_loss.fence", "%q is not a clean absolute path", l.Fence[0])
	}
	return nil
}

func (c *Config) validateEtcd() error {
	e := &c.Controller.Etcd
	if len(e.Endpoints) == 0 {
		return nil
	}
	if c.Controller.Address != "" {
		return invalid("controller.etcd.endpoints",
			"controller.address is set too: this node either keeps records or names the nodes that do")
	}
	for _, endpoint := range e.Endpoints {
		if err := validateEndpoint("controller.etcd.endpoints", endpoint); err != nil {
			return err
		}
	}
	if !strings.HasPrefix(e.Prefix, "/") || !strings.HasSuffix(e.Prefix, "/") {
		return invalid("controller.etcd.prefix", "%q does not begin and end with /", e.Prefix)
	}
	if (e.Cert == "") != (e.Key == "") {
		return invalid("controller.etcd.cert", "controller.etcd.cert and controller.etcd.key go together")
	}
	for key, path := range map[string]string{"controller.etcd.ca": e.CA, "controller.etcd.cert": e.Cert,
		"controller.etcd.key": e.Key} {
		if path != "" && (!filepath.IsAbs(path) || filepath.Clean(path) != path) {
			return invalid(key, "%q is not a clean absolute path", path)
		}
	}
	return nil
}

func (c *Config) validateTracing() error {
	if c.Tracing.Endpoint == "" {
		return nil
	}
	return validateEndpoint("tracing.endpoint", c.Tracing.Endpoint)
}

func validateEndpoint(key, endpoint string) error {
	u, err := url.Parse(endpoint)
	if err != nil || u.Host == "" || u.Path != "" || u.Scheme != "https" && u.Scheme != "http" {
		return invalid(key, "%q is not https://HOST:PORT", endpoint)
	}
	ip := net.ParseIP(u.Hostname())
	if local := u.Hostname() == "localhost" || ip != nil && ip.IsLoopback(); u.Scheme == "http" && !local {
		return invalid(key, "%q leaves this host without TLS: write https://", endpoint)
	}
	return hostPort(key, u.Host)
}
