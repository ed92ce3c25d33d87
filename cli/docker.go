package cli

import (
	"bufio"
	"fmt"
	"os"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"
)

// What to use instead of docker's flags and verbs that are not here. docs/how-to/docker.md shows both tables.
const (
	byNerdctl   = "nerdctl has it: nerdctl run --runtime io.containerd.godwit.v1 %s."
	ownKernel   = "A VM has a kernel of its own, and shares none of the host's namespaces."
	hostDevice  = "A VM gets no device of the host."
	notBounded  = "A VM has a kernel of its own. To limit the VM: --memory and --cpus."
	ownSwap     = "A VM has no swap. To limit its memory: --memory."
	ownNetwork  = "The CNI configuration (cni.conf_dir) sets it for all VMs of the node."
	rotatedLogs = "The log is a file that is rotated (logs.max_bytes). To read it: godwit logs."
	noHealth    = "To check a VM: godwit exec VM COMMAND."
)

// dockerRunFlags are those of docker run that godwit run has not. %s stands for the flag.
var dockerRunFlags = map[string]string{
	"add-host": byNerdctl, "cap-add": byNerdctl, "cap-drop": byNerdctl, "dns": byNerdctl, "dns-option": byNerdctl,
	"dns-search": byNerdctl, "domainname": byNerdctl, "group-add": byNerdctl, "init": byNerdctl, "ip": byNerdctl,
	"mac-address": byNerdctl, "oom-score-adj": byNerdctl, "pids-limit": byNerdctl, "restart": byNerdctl,
	"security-opt": byNerdctl, "shm-size": byNerdctl, "sysctl": byNerdctl, "tmpfs": byNerdctl, "ulimit": byNerdctl,
	"cidfile": byNerdctl, "memory-reservation": byNerdctl,

	"mount":         "Write -v HOST:PATH:ro or -v HOST:PATH:copy. For a tmpfs: nerdctl run --tmpfs.",
	"volumes-from":  "To take files along: godwit cp OTHER:PATH - | godwit cp - VM:PATH.",
	"volume-driver": "Write -v HOST:PATH:copy.",
	"label-file":    "Write -l KEY=VALUE for each.", "platform": "A VM runs images of the host's platform.",
	"runtime": "godwit has only one runtime.", "attach": "Leave out -d, or: godwit attach VM.",
	"detach-keys": "At a terminal, Ctrl-P Ctrl-Q ends godwit attach.", "sig-proxy": "Signals always go to the command.",
	"disable-content-trust": "It has no effect here.", "isolation": "It is only for Windows.",
	"use-api-socket": "A VM reaches no socket of the host.", "expose": "To publish a port: -p PORT.",
	"publish-all": "To publish a port: -p PORT.",
	"link":        "VMs of a network reach each other by address: godwit ps -o wide.",
	"storage-opt": "Write --annotation godwit.dev/writable-size=SIZE.",

	"cgroup-parent": ownKernel, "cgroupns": ownKernel, "ipc": ownKernel, "pid": ownKernel, "userns": ownKernel,
	"uts": ownKernel, "privileged": ownKernel + " nerdctl has --privileged with " +
		"--security-opt privileged-without-host-devices.",
	"device": hostDevice, "device-cgroup-rule": hostDevice, "gpus": hostDevice,
	"blkio-weight": notBounded, "blkio-weight-device": notBounded, "device-read-bps": notBounded,
	"device-read-iops": notBounded, "device-write-bps": notBounded, "device-write-iops": notBounded,
	"cpu-period": "Write --cpus.", "cpu-quota": "Write --cpus.", "cpu-rt-period": notBounded,
	"cpu-rt-runtime": notBounded, "cpu-shares": byNerdctl, "cpuset-cpus": byNerdctl, "cpuset-mems": byNerdctl,
	"kernel-memory": notBounded, "memory-swap": ownSwap, "memory-swappiness": ownSwap, "oom-kill-disable": notBounded,
	"ip6": ownNetwork, "link-local-ip": ownNetwork, "network-alias": ownNetwork,
	"log-driver": rotatedLogs, "log-opt": rotatedLogs,
	"health-cmd": noHealth, "health-interval": noHealth, "health-retries": noHealth, "health-start-interval": noHealth,
	"health-start-period": noHealth, "health-timeout": noHealth, "no-healthcheck": noHealth,
}

// dockerShort are docker's letters of such flags.
var dockerShort = map[string]string{"a": "attach", "c": "cpu-shares", "P": "publish-all"}

// dockerVerbs are docker's verbs that are not here.
var dockerVerbs = map[string]string{
	"build":     "Build images with docker or buildctl, and push them. Then: godwit pull IMAGE.",
	"compose":   "nerdctl compose runs VMs with --runtime io.containerd.godwit.v1.",
	"container": "Leave out the word container: godwit ps, godwit rm VM.",
	"export":    "To get its files: godwit cp VM:/ - >files.tar.",
	"image":     "To list images: godwit images. To delete one: nerdctl rmi IMAGE.", "import": "Use ctr images import.",
	"info": "To check the node: godwit doctor.", "load": "Use ctr images import, or nerdctl load.",
	"login":   "Use docker login or nerdctl login: godwit reads what they write (registry.docker_config).",
	"network": "The CNI configuration makes networks (cni.conf_dir).",
	"pause":   "To free its RAM too: godwit hibernate VM.",
	"push":    "Use nerdctl push IMAGE.", "rmi": "Use nerdctl rmi IMAGE, or ctr images rm IMAGE.",
	"save": "Use ctr images export, or nerdctl save.", "search": "Search at the registry.",
	"swarm":  "To make a cluster: godwit node init, then godwit node join.",
	"system": "To check the node: godwit doctor. To delete snapshots: godwit snapshot prune.",
	"tag":    "Use ctr images tag, or nerdctl tag.", "unpause": "To wake a VM: godwit wake VM.",
	"update": "Use nerdctl update, or make the VM again with other limits.",
	"volume": "A VM keeps its disk over stop, sleep and moves. To copy files: godwit cp.",
	"wait":   "To wait for the end, and get the exit code: godwit attach --no-stdin VM.",
}

// dockerFlag is what to use instead of a flag of docker's; empty: docker has none of this name, or it is not told.
func dockerFlag(cmd *cobra.Command, name string) string {
	if cmd.Name() != "run" && cmd.Name() != "create" {
		return ""
	}
	if long := dockerShort[name]; long != "" {
		name = long
	}
	instead := dockerRunFlags[name]
	if strings.Contains(instead, "%s") {
		return fmt.Sprintf(instead, "--"+name)
	}
	return instead
}

// readEnvFile reads KEY=VALUE, a line each, as docker does: empty lines and those that begin with # are comments, and
// KEY alone is as in this environment.
func readEnvFile(file string) (env []string, err error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("--env-file: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimLeft(lines.Text(), " \t")
		if n == 1 {
			line = strings.TrimPrefix(line, "\ufeff")
		}
		if line == "" || line[0] == '#' {
			continue
		}
		if key, _, _ := strings.Cut(line, "="); key == "" || strings.ContainsAny(key, " \t") {
			return nil, fmt.Errorf("--env-file %s, line %d: write KEY=VALUE, the key without spaces: %w", file, n,
				errdefs.ErrInvalidArgument)
		}
		env = append(env, line)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("--env-file %s: %w: %w", file, err, errdefs.ErrInvalidArgument)
	}
	return env, nil
}
