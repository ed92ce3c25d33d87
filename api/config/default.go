package config

import (
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// Default returns the values that hold where no file says anything. What depends on
// another key (node, tls) is empty until Load or Parse derives it.
func Default() *Config {
	return &Config{
		StateDir:    "/var/lib/godwit",
		RunDir:      "/run/godwit",
		HostNetwork: "refuse",
		StdioURI:    "file:///var/log/godwit/{namespace}-{id}.log",
		VMM:         VMM{Kind: "auto", QEMU: "qemu-system-x86_64", CloudHypervisor: "cloud-hypervisor", Accel: "auto"},
		Guest:       Guest{Kernel: "/usr/share/godwit/vmlinuz", Initrd: "/usr/share/godwit/initramfs"},
		VM:          VM{Memory: 512 << 20, WritableSize: 8 << 30},
		Cache:       Cache{MaxSize: 20 << 30},
		Worker:      Worker{Memory: 256 << 20, Concurrency: 4},
		Containerd:  Runtime{Address: "/run/containerd/containerd.sock", Runtime: "io.containerd.godwit.v1"},
		CNI:         CNI{ConfDir: "/etc/cni/net.d", BinDir: "/opt/cni/bin"},
		Timeouts: Timeouts{
			Boot:      Duration(time.Minute),
			Operation: Duration(10 * time.Minute),
			Abort:     Duration(30 * time.Second),
			Daemon:    Duration(10 * time.Second),
		},
		Log: Log{Level: "info"},
	}
}

func (c *Config) derive() error {
	if c.Node == "" {
		host, err := os.Hostname()
		if err != nil {
			return fmt.Errorf("node: read host name: %w", err)
		}
		c.Node = host
		if err := c.validateNode(); err != nil {
			return err
		}
	}
	if c.RAMDir == "" {
		c.RAMDir = filepath.Join(c.RunDir, "ram")
	}
	pki := filepath.Join(c.StateDir, "pki")
	for _, f := range []struct {
		path *string
		name string
	}{{&c.TLS.CA, "ca.crt"}, {&c.TLS.Cert, "node.crt"}, {&c.TLS.Key, "node.key"}} {
		if *f.path == "" {
			*f.path = filepath.Join(pki, f.name)
		}
	}
	return nil
}
