//go:build integration

package pod

import (
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// mapped is a pod's user namespace on a node, whose root is that user of the host. A kubelet chooses another one on
// each node.
func mapped(root int) object {
	ids := []object{{"container_id": 0, "host_id": root, "length": 65536}}
	return object{"uids": ids, "gids": ids}
}

// security is the part of a configuration that asks for the node's user namespace; empty: the node gives none.
func (n *node) security() object {
	if n.users == 0 {
		return object{}
	}
	users := mapped(n.users)
	users["mode"] = 0 // of the pod
	return object{"security_context": object{"namespace_options": object{"userns_options": users}}}
}

// volumes are mounts of a ConfigMap and an emptyDir, as a kubelet has them for a pod with a user namespace.
func (n *node) volumes(uid string) (all []object) {
	n.t.Helper()
	dir := filepath.Join(n.Dir, "kubelet/pods", uid, "volumes")
	config, empty := &configMap{dir: filepath.Join(dir, "kubernetes.io~configmap/settings")},
		filepath.Join(dir, "kubernetes.io~empty-dir/scratch")
	for _, d := range []string{config.dir, empty} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			n.t.Fatal(err)
		}
	}
	if _, err := os.Lstat(filepath.Join(config.dir, "key")); err != nil {
		config.write(n.t, "of node "+n.Name)
	}
	users := mapped(n.users)
	ids := object{"uidMappings": users["uids"], "gidMappings": users["gids"]}
	for path, at := range map[string]string{config.dir: "/settings", empty: "/scratch"} {
		m := object{"host_path": path, "container_path": at, "readonly": path == config.dir}
		maps.Copy(m, ids)
		all = append(all, m)
	}
	return all
}

// hasUsers wants a container of the pod to have the ids that it began with, in all files that it sees. Its ConfigMap is
// that of the node where it is.
func (s *sleeper) hasUsers(first *node) {
	t := s.n.t
	t.Helper()
	const script = `tr -s ' ' </proc/self/uid_map; id -u
stat -c %u:%g / /bin/busybox /kept /scratch /scratch/kept /settings/key | sort -u
chown 7:8 /scratch/kept && stat -c %u:%g /scratch/kept; chown 0:0 /scratch/kept; stat -c %u /proc/sys/kernel`
	want := strings.ReplaceAll(" 0 ROOT 65536\n0\n0:0\n7:8\n65534", "ROOT", strconv.Itoa(first.users))
	if out := s.n.crictl("exec", s.reader, "sh", "-c", script); out != strings.TrimSpace(want) {
		t.Errorf("with a user namespace a container on node %s sees\n%s\nwanted\n%s", s.n.Name, out, want)
	}
	s.n.eventually("the ConfigMap of the node", has("of node "+s.n.Name), "exec", s.reader, "cat", "/settings/key")
}
