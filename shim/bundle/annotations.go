package bundle

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/config"
	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/api/spec"
)

// Prefix of all annotations that godwit reads.
const Prefix = spec.AnnotationPrefix

// maxVCPUs of a VM.
const maxVCPUs = 240

type annotations struct {
	memory       uint64 // bytes, 0: not set
	vcpus        int
	vmm          string
	image        string
	writableSize int64
	copyVolumes  bool
	disk         VMDisk
	recycle      bool
	restore      string
	honoured     map[string]string
}

var readers = map[string]func(*annotations, string) error{
	"memory": func(a *annotations, v string) error {
		n, err := sizeBetween(v, config.MinVM, config.MaxVM)
		a.memory = uint64(n)
		return err
	},
	"vcpus": func(a *annotations, v string) error {
		n, err := strconv.Atoi(v)
		if err != nil || n < 1 || n > maxVCPUs {
			return fmt.Errorf("%q is not a number between 1 and %d: %w", v, maxVCPUs, errdefs.ErrInvalidArgument)
		}
		a.vcpus = n
		return nil
	},
	"writable-size": func(a *annotations, v string) error {
		n, err := sizeBetween(v, 64<<20, 16<<40)
		a.writableSize = int64(n)
		return err
	},
	"vmm": func(a *annotations, v string) error {
		a.vmm = v
		return oneOf(v, "qemu", "cloud-hypervisor")
	},
	"volumes": func(a *annotations, v string) error {
		a.copyVolumes = true
		return oneOf(v, "copy")
	},
	"nic": func(a *annotations, v string) error {
		a.recycle = true
		return oneOf(v, "recycle")
	},
	"network": func(_ *annotations, v string) error { return oneOf(v, spec.NetworkKeep) },
	"restore": func(a *annotations, v string) error {
		a.restore = v
		return oneOf(v, config.RestoreModes()...)
	},
	"ready":  isCommand,
	"notify": isCommand,
	"ready-timeout": func(_ *annotations, v string) error {
		_, err := spec.ParseReadyTimeout(v)
		return err
	},
	"vm":      func(_ *annotations, v string) error { return record.CheckVMID(v) },
	"on-stop": func(_ *annotations, v string) error { return oneOf(v, spec.OnStopHibernate) },
	"image": func(a *annotations, v string) error {
		a.image = v
		if v == "" {
			return fmt.Errorf("it is empty: name the image or leave the annotation out: %w", errdefs.ErrInvalidArgument)
		}
		return nil
	},
	"os": func(a *annotations, v string) error {
		a.disk.OS = v
		return oneOf(v, spec.OSLinux, spec.OSWindows)
	},
	"disk": func(a *annotations, v string) (err error) {
		a.disk.Path, err = imagePath(v)
		return err
	},
	"disk-size": func(a *annotations, v string) error {
		n, err := sizeBetween(v, minDisk, config.MaxVM)
		a.disk.Size = int64(n)
		return err
	},
	"firmware": func(a *annotations, v string) error {
		a.disk.Boot = v
		return oneOf(v, spec.BootUEFI, spec.BootBIOS)
	},
	"kernel": func(a *annotations, v string) (err error) {
		a.disk.Kernel, err = imagePath(v)
		return err
	},
	"initrd": func(a *annotations, v string) (err error) {
		a.disk.Initrd, err = imagePath(v)
		return err
	},
	"cmdline": func(a *annotations, v string) error {
		a.disk.Cmdline = v
		if v == "" || len(v) > maxCmdline || strings.ContainsAny(v, "\n\x00") {
			return fmt.Errorf("%d bytes: need 1 to %d on one line: %w", len(v), maxCmdline, errdefs.ErrInvalidArgument)
		}
		return nil
	},
}

const (
	minDisk    = 1 << 20
	maxCmdline = 2047 // of the kernel for x86
)

// isCommand takes what the Spec itself is asked for when it is run.
func isCommand(_ *annotations, v string) error {
	_, err := spec.ParseCommand(v)
	return err
}

// imagePath takes a path in an image: it cannot lead out of it.
func imagePath(v string) (string, error) {
	if !path.IsAbs(v) || path.Clean(v) != v || v == "/" {
		return "", fmt.Errorf("%q is not a clean absolute path in the image: %w", v, errdefs.ErrInvalidArgument)
	}
	return v, nil
}

// Known returns the names of the annotations that godwit reads, sorted.
func Known() []string {
	var all []string
	for name := range readers {
		all = append(all, Prefix+name)
	}
	slices.Sort(all)
	return all
}

func readAnnotations(all map[string]string) (annotations, error) {
	var a annotations
	for _, key := range slices.Sorted(maps.Keys(all)) {
		name, ours := strings.CutPrefix(key, Prefix)
		if !ours || key == spec.AnnotationDigest { // that one is this node's own mark
			continue
		}
		read, known := readers[name]
		if !known {
			return a, fmt.Errorf("annotation %s is unknown; known are %s: %w", key, strings.Join(Known(), ", "),
				errdefs.ErrInvalidArgument)
		}
		if err := read(&a, all[key]); err != nil {
			return a, fmt.Errorf("annotation %s: %w", key, err)
		}
		if a.honoured == nil {
			a.honoured = make(map[string]string)
		}
		a.honoured[key] = all[key]
	}
	if a.honoured[spec.AnnotationReadyTimeout] != "" && a.honoured[spec.AnnotationReady] == "" {
		return a, fmt.Errorf("annotation %s: there is nothing to wait for without %s: %w", spec.AnnotationReadyTimeout,
			spec.AnnotationReady, errdefs.ErrInvalidArgument)
	}
	return a, nil
}

// ownAnnotations are those that a container object on another node needs; the others
// are this host's business and may hold its paths.
func (b *Bundle) ownAnnotations() map[string]string {
	own := make(map[string]string)
	for key, value := range b.Annotations {
		if strings.HasPrefix(key, Prefix) && key != spec.AnnotationDigest {
			own[key] = value
		}
	}
	if len(own) == 0 {
		return nil
	}
	return own
}

func oneOf(v string, allowed ...string) error {
	if slices.Contains(allowed, v) {
		return nil
	}
	return fmt.Errorf("%q is not one of %s: %w", v, strings.Join(allowed, ", "), errdefs.ErrInvalidArgument)
}

func sizeBetween(v string, low, high config.Size) (config.Size, error) {
	n, err := config.ParseSize(v)
	if err != nil {
		return 0, err
	}
	if n < low || n > high {
		return 0, fmt.Errorf("%s is not between %s and %s: %w", v, low, high, errdefs.ErrInvalidArgument)
	}
	return n, nil
}
