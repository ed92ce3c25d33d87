package bundle

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// Annotations that containerd's CRI plugin sets: internal/cri/annotations of containerd 2.4.
const (
	criPrefix        = "io.kubernetes.cri."
	criType          = criPrefix + "container-type"
	criSandbox       = criPrefix + "sandbox-id"
	criSandboxName   = criPrefix + "sandbox-name"
	criNamespace     = criPrefix + "sandbox-namespace"
	criUID           = criPrefix + "sandbox-uid"
	criContainerName = criPrefix + "container-name"
	criImage         = criPrefix + "image-name"
	criMemory        = criPrefix + "sandbox-memory"
	criQuota         = criPrefix + "sandbox-cpu-quota"
	criPeriod        = criPrefix + "sandbox-cpu-period"
)

// cdiPrefix is that of annotations which ask for devices by name.
const cdiPrefix = "cdi.k8s.io/"

// What a task is to CRI: the value of criType.
const (
	roleAlone     = "" // a task that CRI knows nothing of
	roleSandbox   = "sandbox"
	roleContainer = "container"
)

// cri is what the annotations of CRI say of a task.
type cri struct {
	role      string
	sandbox   string // containerd's id
	namespace string // Kubernetes's
	name, uid string // of the pod
	container string // its name in the pod
}

func readCRI(all map[string]string) (c cri, err error) {
	c = cri{role: all[criType], sandbox: all[criSandbox], namespace: all[criNamespace], name: all[criSandboxName],
		uid: all[criUID], container: all[criContainerName]}
	needed := map[string]string{criSandbox: c.sandbox, criNamespace: c.namespace, criSandboxName: c.name}
	switch c.role {
	case roleAlone:
		for _, key := range slices.Sorted(maps.Keys(all)) {
			if strings.HasPrefix(key, criPrefix) {
				return c, fmt.Errorf("annotation %s: it is there without %s, so that nothing says whether this is a pod: %w",
					key, criType, errdefs.ErrInvalidArgument)
			}
		}
		return c, nil
	case roleSandbox:
	case roleContainer:
		needed[criContainerName] = c.container
	default:
		return c, fmt.Errorf("annotation %s: %w", criType, oneOf(c.role, roleSandbox, roleContainer))
	}
	for _, key := range slices.Sorted(maps.Keys(needed)) {
		if needed[key] == "" {
			return c, fmt.Errorf("annotation %s: it is empty: a pod has namespace and name, a container has a name: %w", key,
				errdefs.ErrInvalidArgument)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(all)) {
		if strings.HasPrefix(key, cdiPrefix) {
			return c, refused("annotation "+key, "CDI names devices of the host, and none is passed to a VM: leave it out")
		}
	}
	return c, nil
}

// isPod reports whether a task belongs to a pod.
func isPod(oci *specs.Spec) bool { return oci.Annotations[criType] != roleAlone }

// criLimits are the sums that a kubelet tells of the limits of a pod's containers; none for one that a
// person made with crictl.
func criLimits(all map[string]string) (*specs.Spec, error) {
	number := func(key string) (int64, error) {
		text, ok := all[key]
		if !ok {
			return 0, nil
		}
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("annotation %s: %q is not a number: %w", key, text, errdefs.ErrInvalidArgument)
		}
		return n, nil
	}
	memory, err := number(criMemory)
	if err != nil {
		return nil, err
	}
	quota, err := number(criQuota)
	if err != nil {
		return nil, err
	}
	signed, err := number(criPeriod)
	if err != nil {
		return nil, err
	}
	period := uint64(max(signed, 0))
	return &specs.Spec{Linux: &specs.Linux{Resources: &specs.LinuxResources{
		Memory: &specs.LinuxMemory{Limit: &memory}, CPU: &specs.LinuxCPU{Quota: &quota, Period: &period},
	}}}, nil
}

// IsMember reports whether a bundle is of a container of a pod, whose VM is the sandbox's.
func IsMember(dir string) (bool, error) {
	_, annotations, err := HooksOf(dir)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	return annotations[criType] == roleContainer, err
}
