package initd

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// A module whose device the VM has not is left out; the order of the others stays.
func TestUsefulModules(t *testing.T) {
	all := modules{"virtio_blk.ko", "vsock.ko", "vmw_vsock_virtio_transport_common.ko", "vmw_vsock_virtio_transport.ko",
		"virtio_net.ko", "virtio_balloon.ko"}
	for name, tt := range map[string]struct {
		devices []string
		want    modules
	}{
		"QEMU": {[]string{"0x0002", "0x0003"}, modules{"virtio_blk.ko"}},
		"Cloud Hypervisor": {[]string{"0x0001", "0x0002", "0x0013"}, modules{"virtio_blk.ko", "vsock.ko",
			"vmw_vsock_virtio_transport_common.ko", "vmw_vsock_virtio_transport.ko", "virtio_net.ko"}},
		"balloon": {[]string{"0x0001", "0x0005"}, modules{"virtio_blk.ko", "virtio_net.ko", "virtio_balloon.ko"}},
	} {
		t.Run(name, func(t *testing.T) {
			sysfs := t.TempDir()
			for i, number := range tt.devices {
				dir := filepath.Join(sysfs, "bus/virtio/devices", "virtio"+string(rune('0'+i)))
				if err := os.MkdirAll(dir, 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(dir, "device"), []byte(number+"\n"), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			numbers, err := present(sysfs)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, all.useful(numbers)); diff != "" {
				t.Errorf("modules (-want +got):\n%s", diff)
			}
		})
	}
}

// What a container's start does not wait for is loaded later: nothing is lost, and the
// order of each part stays.
func TestParts(t *testing.T) {
	all := modules{"virtio_blk.ko", "failover.ko", "net_failover.ko", "virtio_net.ko", "virtio-rng.ko",
		"virtio_balloon.ko"}
	eager, later := all.part(true)
	if diff := cmp.Diff(modules{"virtio_blk.ko", "virtio_balloon.ko"}, eager); diff != "" {
		t.Errorf("eager (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(modules{"failover.ko", "net_failover.ko", "virtio_net.ko", "virtio-rng.ko"}, later); diff != "" {
		t.Errorf("later (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(modules{"failover.ko", "net_failover.ko", "virtio_net.ko"}, later.network()); diff != "" {
		t.Errorf("network (-want +got):\n%s", diff)
	}
	eager, later = all.part(false)
	if diff := cmp.Diff(modules{"virtio_blk.ko", "virtio-rng.ko", "virtio_balloon.ko"}, eager); diff != "" {
		t.Errorf("without random numbers, eager (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(modules{"failover.ko", "net_failover.ko", "virtio_net.ko"}, later); diff != "" {
		t.Errorf("without random numbers, later (-want +got):\n%s", diff)
	}
	// A kernel that has all built in has no list, and nothing to load.
	if eager, later := (modules)(nil).part(false); len(eager)+len(later) > 0 {
		t.Errorf("of no modules: eager %v, later %v", eager, later)
	}
}
