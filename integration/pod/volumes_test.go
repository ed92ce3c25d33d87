//go:build integration

package pod

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"godwit.dev/godwit/integration/harness"
)

// configMap is a volume as a kubelet writes it: its AtomicWriter makes a new directory, and renames a link.
type configMap struct {
	dir      string
	revision int
}

func (c *configMap) write(t *testing.T, value string) {
	t.Helper()
	c.revision++
	name := fmt.Sprintf("..rev%d", c.revision)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.MkdirAll(filepath.Join(c.dir, name), 0o755))
	must(os.WriteFile(filepath.Join(c.dir, name, "key"), []byte(value), 0o644))
	next := filepath.Join(c.dir, "..data_tmp")
	must(os.Symlink(name, next))
	must(os.Rename(next, filepath.Join(c.dir, "..data")))
	if c.revision == 1 {
		must(os.Symlink("..data/key", filepath.Join(c.dir, "key")))
		return
	}
	must(os.RemoveAll(filepath.Join(c.dir, fmt.Sprintf("..rev%d", c.revision-1))))
}

// TestVolumes: what a kubelet mounts. A ConfigMap's change is seen in the container. Two containers share an emptyDir.
// The last words of a container are in the host's file when its end is told.
func TestVolumes(t *testing.T) {
	n := open(t, harness.Newest)
	pod := filepath.Join(n.Dir, "kubelet/pods/uid-vol")
	config := &configMap{dir: filepath.Join(pod, "volumes/kubernetes.io~configmap/settings")}
	empty := filepath.Join(pod, "volumes/kubernetes.io~empty-dir/scratch")
	last := filepath.Join(pod, "containers/writer/0123abcd")
	for _, dir := range []string{config.dir, empty, filepath.Dir(last)} {
		if err := os.MkdirAll(dir, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(last, nil, 0o666); err != nil {
		t.Fatal(err)
	}
	config.write(t, "first")
	mounts := []object{
		{"host_path": config.dir, "container_path": "/settings", "readonly": true},
		{"host_path": empty, "container_path": "/scratch"},
		{"host_path": last, "container_path": "/dev/termination-log"},
	}
	sandbox := n.sandbox("vol", nil)
	id := n.crictl("runp", "--runtime", "godwit", sandbox)
	run := n.runner(id, sandbox)
	writer := run("writer", "echo shared > /scratch/file; echo last words > /dev/termination-log; sleep 1; exit 9",
		object{"mounts": mounts})
	reader := run("reader", "sleep 10000", object{"mounts": mounts[:2]})
	if out := n.crictl("exec", reader, "cat", "/settings/key"); out != "first" {
		t.Errorf("the ConfigMap has %q in the container", out)
	}
	n.eventually("a file of the other container", has("shared"), "exec", reader, "cat", "/scratch/file")
	changed := time.Now()
	config.write(t, "second")
	n.eventually("the ConfigMap's change", has("second"), "exec", reader, "cat", "/settings/key")
	t.Logf("the change was seen after %v at most", time.Since(changed))
	n.eventually("the writer's end", has(`"exitCode": 9`), "inspect", writer)
	if data, err := os.ReadFile(last); err != nil || string(data) != "last words\n" {
		t.Errorf("the host's termination log has %q: %v", data, err)
	}
	n.crictl("stopp", id)
	n.crictl("rmp", id)
}
