package initd

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
)

// sysfs of the running guest; the bus that its devices are on.
const (
	sysfs     = "/sys"
	virtioBus = "bus/virtio"
)

// drivers are the modules that the channel does not need, and when they take their devices. In a
// boot each is loaded when it is wanted and takes the devices that are there. In a guest that
// will be copied all are loaded at once and take none. Each copy lets them take their devices
// when it is told what it is.
type drivers struct {
	eager, later modules
	sysfs        string
	insert       func(modules) error // those that have a device
	insertAll    func(modules) error

	mu     sync.Mutex
	held   []string // numbers of the devices that there were; nil: a boot
	loaded bool     // eager are
	net    bool     // so are those of NICs
}

func newDrivers(rest modules, seeded bool) *drivers {
	eager, later := rest.part(seeded)
	return &drivers{eager: eager, later: later, sysfs: sysfs, insert: modules.loadUseful, insertAll: modules.load}
}

// ready returns once disks and file systems can be used.
func (d *drivers) ready() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.loaded {
		return nil
	}
	err := d.loadFor(d.eager, diskDevice)
	d.loaded = err == nil
	return err
}

// network returns once NICs can be used.
func (d *drivers) network() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.net {
		return nil
	}
	err := d.loadFor(d.later.network(), netDevice)
	d.net = err == nil
	return err
}

// loadRest loads what no container waits for.
func (d *drivers) loadRest() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.loadFor(d.later, "")
}

// loadFor loads modules, or, where all are loaded, lets devices of that number have theirs.
func (d *drivers) loadFor(m modules, number string) error {
	if d.held == nil || number != "" && !slices.Contains(d.held, number) { // it came later
		return d.insert(m)
	}
	return d.probe(number)
}

// loadPresent loads everything that has a device here, and binds nothing. In a guest with neither disks nor NICs it
// loads the modules of both: its copies get such devices later, and the drivers of the channel may be loaded already.
func (d *drivers) loadPresent() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	held, err := present(d.sysfs)
	if err != nil {
		return err
	}
	bare := !slices.Contains(held, diskDevice) && !slices.Contains(held, netDevice)
	if d.held != nil || (d.loaded || d.net) && !bare {
		return errors.New("drivers have met devices already")
	}
	auto := filepath.Join(d.sysfs, virtioBus, "drivers_autoprobe")
	set := func(value string) error {
		if err := os.WriteFile(auto, []byte(value), 0); err != nil {
			return fmt.Errorf("hold drivers: %w", err)
		}
		return nil
	}
	if err := set("0"); err != nil {
		return err
	}
	for _, m := range []modules{d.eager, d.later} {
		if err := d.insert(m); err != nil {
			return err
		}
	}
	if bare {
		if err := d.insertAll(d.later.network()); err != nil {
			return err
		}
	}
	d.held = append([]string{}, held...)
	return set("1") // for what is plugged later; what is there stays as it is
}

// probe binds the devices of a kind, empty for all, that have no driver yet.
func (d *drivers) probe(number string) error {
	bus := filepath.Join(d.sysfs, virtioBus)
	devices, err := os.ReadDir(filepath.Join(bus, "devices"))
	if err != nil {
		return fmt.Errorf("list virtio devices: %w", err)
	}
	for _, dev := range devices {
		dir := filepath.Join(bus, "devices", dev.Name())
		if number != "" {
			if is, err := deviceNumber(dir); err != nil || is != number {
				continue
			}
		}
		if _, err := os.Lstat(filepath.Join(dir, "driver")); err == nil {
			continue
		}
		if err := os.WriteFile(filepath.Join(bus, "drivers_probe"), []byte(dev.Name()), 0); err != nil {
			return fmt.Errorf("bind %s: %w", dev.Name(), err)
		}
	}
	return nil
}
