package initd

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// fakeBus is a /sys with a NIC, two disks, one of which has its driver, and a channel.
func fakeBus(t *testing.T) (root string, probed func() string) {
	t.Helper()
	root = t.TempDir()
	bus := filepath.Join(root, virtioBus)
	for name, number := range map[string]string{"virtio0": "0x0003", "virtio1": netDevice, "virtio2": diskDevice,
		"virtio3": diskDevice} {
		dir := filepath.Join(bus, "devices", name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "device"), []byte(number+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		if name == "virtio0" || name == "virtio2" {
			if err := os.Symlink("x", filepath.Join(dir, "driver")); err != nil {
				t.Fatal(err)
			}
		}
	}
	return root, func() string {
		data, err := os.ReadFile(filepath.Join(bus, "drivers_probe"))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		return string(data)
	}
}

// In a boot, modules are loaded when they are wanted, once, and nothing is bound by hand.
func TestDriversOfABoot(t *testing.T) {
	root, probed := fakeBus(t)
	var loaded []string
	d := newDrivers(modules{"virtio_blk.ko", "virtio_net.ko", rngModule}, true)
	d.sysfs = root
	d.insert = func(m modules) error { loaded = append(loaded, slices.Clone(m)...); return nil }
	for _, f := range []func() error{d.ready, d.ready, d.network, d.network, d.loadRest} {
		if err := f(); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff([]string{"virtio_blk.ko", "virtio_net.ko", "virtio_net.ko", rngModule}, loaded); diff != "" {
		t.Errorf("loaded (-want +got):\n%s", diff)
	}
	if p := probed(); p != "" {
		t.Errorf("bound %q", p)
	}
	if err := d.loadPresent(); err == nil {
		t.Error("drivers that have devices can be held")
	}
}

// A guest with neither disks nor NICs is held although its channel's drivers were loaded. It has the drivers of NICs,
// which its copies get.
func TestDriversOfABareGuest(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, virtioBus, "devices", "virtio0")
	if err := errors.Join(os.MkdirAll(dir, 0o755),
		os.WriteFile(filepath.Join(dir, "device"), []byte("0x0013\n"), 0o644)); err != nil {
		t.Fatal(err)
	}
	var useful, all []string
	d := newDrivers(modules{"vsock.ko", "virtio_blk.ko", "virtio_net.ko"}, true)
	d.sysfs = root
	d.insert = func(m modules) error { useful = append(useful, m...); return nil }
	d.insertAll = func(m modules) error { all = append(all, m...); return nil }
	for _, f := range []func() error{d.ready, d.loadPresent, d.ready, d.network} {
		if err := f(); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Contains(useful, "virtio_blk.ko") || !slices.Equal(all, []string{"virtio_net.ko"}) {
		t.Errorf("loaded %q, without a device %q", useful, all)
	}
	if err := d.loadPresent(); err == nil {
		t.Error("a guest is held twice")
	}
}

// In a guest that is to be copied all modules are loaded before any device is bound, and
// each copy binds what it needs.
func TestDriversHeld(t *testing.T) {
	root, probed := fakeBus(t)
	auto := filepath.Join(root, virtioBus, "drivers_autoprobe")
	var loaded []string
	d := newDrivers(modules{"virtio_blk.ko", "virtio_net.ko"}, true)
	d.sysfs = root
	d.insert = func(m modules) error {
		if on, err := os.ReadFile(auto); err != nil || string(on) != "0" {
			t.Errorf("loaded with autoprobe %q, %v", on, err)
		}
		loaded = append(loaded, m...)
		return nil
	}
	if err := d.loadPresent(); err != nil {
		t.Fatal(err)
	}
	if on, _ := os.ReadFile(auto); string(on) != "1" || probed() != "" {
		t.Errorf("held: autoprobe %q, bound %q", on, probed())
	}
	for _, step := range []struct {
		do   func() error
		want string
	}{{d.ready, "virtio3"}, {d.network, "virtio1"}} {
		if err := step.do(); err != nil {
			t.Fatal(err)
		}
		if got := probed(); got != step.want {
			t.Errorf("bound %q, want %q", got, step.want)
		}
	}
	if diff := cmp.Diff([]string{"virtio_blk.ko", "virtio_net.ko"}, loaded); diff != "" {
		t.Errorf("loaded (-want +got):\n%s", diff)
	}
}
