package bundle

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/guest/stage"
)

// readPodMounts leaves in oci the mounts that the guest makes. The bind mounts become volumes of the
// pod, or copies of this container's own.
func (b *Bundle) readPodMounts(oci *specs.Spec, c cri, copyVolumes bool) error {
	var kept []specs.Mount
	for _, m := range oci.Mounts {
		if !path.IsAbs(m.Destination) {
			return fmt.Errorf("mounts: destination %q is not an absolute path: %w", m.Destination, errdefs.ErrInvalidArgument)
		}
		m.Options = stage.PlainOptions(m.Options)
		if m.Type == "cgroup" {
			m.Options = slices.DeleteFunc(m.Options, func(o string) bool {
				return slices.Contains(cgroupOfHost, o)
			})
		}
		m, ids, err := takeMapping(m, spec.UsersOf(oci))
		if err != nil {
			return err
		}
		if err := refuseMount(m); err != nil {
			return err
		}
		if !isBind(m) {
			kept = append(kept, m)
			continue
		}
		if err := b.readPodBind(m, c, copyVolumes, ids); err != nil {
			return err
		}
	}
	oci.Mounts = kept
	var err error
	b.copied, err = b.Copies.measure(append(slices.Clone(kept), b.Member.targets()...))
	return err
}

// cgroupOfHost are options that CRI repeats of the host's cgroup file system.
var cgroupOfHost = []string{"nsdelegate", "memory_recursiveprot"}

// targets are the volumes as mounts, which what is copied below them does not fill the disk of.
func (m *Member) targets() (all []specs.Mount) {
	for _, v := range m.Container.Mounts {
		all = append(all, specs.Mount{Destination: v.Target})
	}
	return all
}

func (b *Bundle) readPodBind(m specs.Mount, c cri, copyVolumes, ids bool) error {
	field := "mount " + m.Destination
	for _, o := range m.Options {
		switch o {
		case "rshared", "shared":
			return refused(field, "mount propagation Bidirectional: what a container mounts in a VM cannot come out of it: "+
				"leave it out")
		case "rslave", "slave":
			b.addNote("%s: mount propagation HostToContainer is not applied: what the host mounts later is not seen in "+
				"the VM", field)
		}
	}
	source, err := filepath.EvalSymlinks(m.Source)
	if err != nil {
		return fmt.Errorf("%s: %w: %w", field, err, errdefs.ErrNotFound)
	}
	v, below, err := findVolume(source, path.Clean(m.Source), path.Clean(m.Destination), c)
	if err != nil {
		return fmt.Errorf("%s: %w", field, err)
	}
	if v == nil || v.foreign != "" && copyVolumes {
		return b.readPodCopy(m, source, c, copyVolumes, ids)
	}
	if v.foreign != "" {
		return refused(field, v.foreign)
	}
	options, _, err := stage.CopyOptions(m.Destination, m.Options)
	if err != nil {
		return err
	}
	if v.Kind == spec.VolumeSynced {
		if err := v.fits(); err != nil {
			return fmt.Errorf("%s: %w", field, err)
		}
	}
	v.Mapped = ids
	b.Member.Volumes = append(b.Member.Volumes, v.Volume)
	b.Member.Container.Mounts = append(b.Member.Container.Mounts, spec.VolumeMount{Path: below,
		Target: path.Clean(m.Destination), Options: options})
	return nil
}

// readPodCopy takes what is no volume of the pod: a copy, or the termination log.
func (b *Bundle) readPodCopy(m specs.Mount, source string, c cri, copyVolumes, ids bool) error {
	own := ofImage(source, b.ID)
	copied, err := readCopy(m, copyVolumes || own)
	if err != nil {
		return err
	}
	copied.Mapped = ids
	if info, err := os.Lstat(source); err == nil && info.Mode().IsRegular() && !copied.ReadOnly &&
		b.Member.Termination.Source == "" && isTermination(source, copied.Destination, c) {
		b.Member.Termination = copied
		return nil
	}
	b.Copies = append(b.Copies, copied)
	if !copied.ReadOnly && !own && !slices.Contains(defaultBinds, copied.Destination) {
		b.addNote("mount %s is a copy: what the container writes there stays in the VM", copied.Destination)
	}
	return nil
}

// ofImage reports whether a directory was made by CRI for a VOLUME of the image: it is this container's
// alone, and goes with it.
func ofImage(source, id string) bool {
	return path.Base(path.Dir(source)) == "volumes" && path.Base(path.Dir(path.Dir(source))) == id
}

// terminationLog is where Kubernetes puts it unless a pod says otherwise.
const terminationLog = "/dev/termination-log"

// ofKubelet is the file that a kubelet makes for each start of a container.
var ofKubelet = regexp.MustCompile(`/pods/([^/]+)/containers/([^/]+)/[0-9a-f]{8}$`)

func isTermination(source, target string, c cri) bool {
	m := ofKubelet.FindStringSubmatch(source)
	return target == terminationLog || m != nil && m[1] == c.uid && m[2] == c.container &&
		!strings.HasPrefix(target, "/etc/")
}
