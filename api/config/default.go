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
		VMM: VMM{
			Kind: "auto", QEMU: "qemu-system-x86_64", CloudHypervisor: "cloud-hypervisor", Accel: "auto", FirstUser: 0x70000000,
			Firmware: "/usr/share/OVMF/OVMF_CODE_4M.fd", FirmwareVars: "/usr/share/OVMF/OVMF_VARS_4M.fd",
		},
		Guest: Guest{Kernel: "/usr/share/godwit/vmlinuz", Initrd: "/usr/share/godwit/initramfs"},
		VM:    VM{Memory: 512 << 20, WritableSize: 8 << 30, MaxDisk: 1 << 40},
		Cache: Cache{MaxSize: 20 << 30, Packs: 10 << 30},
		Template: Template{
			Boot:  BootTemplates{Mode: "on", After: 2, Max: 8, MaxSize: 2 << 30},
			Image: GoldenTables{Mode: "on", Max: 16, MaxSize: 1 << 30},
		},
		Worker: Worker{Memory: 256 << 20, Concurrency: 4, Tracking: "auto", PauseBudget: Duration(50 * time.Millisecond),
			Restore: RestoreAuto},
		Retention:  Retention{Keep: 1, Ended: Duration(24 * time.Hour), Grace: Duration(time.Hour)},
		Move:       Move{Parallel: 5, Outgoing: 2, Incoming: 2, Pull: PullAny},
		NodeLoss:   NodeLoss{Policy: LossReport, After: Duration(2 * time.Minute)},
		Containerd: Runtime{Address: "/run/containerd/containerd.sock", Runtime: "io.containerd.godwit.v1"},
		Controller: Control{Etcd: Etcd{Prefix: "/godwit/"}, RecordsPerNode: 10_000, OperationsPerNode: 1_000},
		CNI:        CNI{ConfDir: "/etc/cni/net.d", BinDir: "/opt/cni/bin"},
		Timeouts: Timeouts{
			Boot:      Duration(time.Minute),
			Operation: Duration(10 * time.Minute),
			Abort:     Duration(30 * time.Second),
			Daemon:    Duration(10 * time.Second),
			NIC:       Duration(30 * time.Second),
			Ready:     Duration(30 * time.Second),
			Notify:    Duration(10 * time.Second),
		},
		Log:  Log{Level: "info"},
		Logs: Logs{MaxBytes: 16 << 20, Files: 4},
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
	if c.Registry.Repository == "" && c.Registry.Layout == "" {
		c.Registry.Layout, c.Registry.Own = c.DefaultStore(), true
	}
	if c.Peer.Advertise == "" {
		c.Peer.Advertise = c.Peer.Listen
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
