package initd

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

const modulesDir = "/modules"

// modules are names of files in modulesDir in loading order.
type modules []string

// readModules reads the order; a kernel that needs no modules has none.
func readModules() (modules, error) {
	data, err := os.ReadFile(filepath.Join(modulesDir, "list"))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read list of modules: %w", err)
	}
	return strings.Fields(string(data)), nil
}

// split cuts the list after the named module.
func (m modules) split(last string) (first, rest modules) {
	i := slices.Index(m, last) + 1
	if i == 0 {
		return m, nil
	}
	return m[:i], m[i:]
}

// devices maps modules to the virtio device, by its number, that they are of no use
// without. Every module costs a boot some milliseconds, without KVM some ten.
var devices = map[string]string{
	"failover.ko":                          netDevice,
	"net_failover.ko":                      netDevice,
	"virtio_net.ko":                        netDevice,
	rngModule:                              "0x0004",
	"virtio_balloon.ko":                    "0x0005",
	"vsock.ko":                             "0x0013",
	"vmw_vsock_virtio_transport_common.ko": "0x0013",
	"vmw_vsock_virtio_transport.ko":        "0x0013",
}

const (
	netDevice  = "0x0001"
	diskDevice = "0x0002"
	rngModule  = "virtio-rng.ko"
)

// late reports whether a container starts without the module: it is loaded afterwards,
// or by who needs it earlier.
func late(name string) bool { return name == rngModule || devices[name] == netDevice }

// part parts the list into what a container's start waits for and what it does not. It
// waits for random numbers where the kernel has none yet.
func (m modules) part(seeded bool) (eager, later modules) {
	for _, name := range m {
		if late(name) && (seeded || name != rngModule) {
			later = append(later, name)
		} else {
			eager = append(eager, name)
		}
	}
	return eager, later
}

// network are those that a NIC needs.
func (m modules) network() modules {
	return slices.DeleteFunc(slices.Clone(m), func(name string) bool { return devices[name] != netDevice })
}

// present answers the numbers of the virtio devices below a directory of sysfs. They
// are there once virtio_pci is.
func present(sysfs string) ([]string, error) {
	bus := filepath.Join(sysfs, virtioBus, "devices")
	all, err := os.ReadDir(bus)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("list virtio devices: %w", err)
	}
	var numbers []string
	for _, d := range all {
		number, err := deviceNumber(filepath.Join(bus, d.Name()))
		if err != nil {
			return nil, err
		}
		numbers = append(numbers, number)
	}
	return numbers, nil
}

func deviceNumber(dir string) (string, error) {
	data, err := os.ReadFile(filepath.Join(dir, "device"))
	if err != nil {
		return "", fmt.Errorf("read virtio device: %w", err)
	}
	return strings.TrimSpace(string(data)), nil
}

// useful leaves out the modules whose device is not among numbers.
func (m modules) useful(numbers []string) modules {
	return slices.DeleteFunc(slices.Clone(m), func(name string) bool {
		number, ok := devices[name]
		return ok && !slices.Contains(numbers, number)
	})
}

// loadUseful inserts the modules that have a device here, or need none.
func (m modules) loadUseful() error {
	numbers, err := present(sysfs)
	if err != nil {
		return err
	}
	return m.useful(numbers).load()
}

// load inserts the modules in order. One that is there already is fine.
func (m modules) load() error {
	for _, name := range m {
		if err := insert(filepath.Join(modulesDir, name)); err != nil {
			return fmt.Errorf("load module %s: %w", name, err)
		}
	}
	return nil
}

func insert(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.FinitModule(int(f.Fd()), "", 0); err != nil && err != unix.EEXIST {
		return err
	}
	return nil
}
