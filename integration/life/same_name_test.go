//go:build integration

package life

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/integration/images"
)

// A second godwitd of a node's name is refused. The lock cannot stop one in a container with directories of its own.
// That one knows none of the node's VMs, and deletes no tap of theirs: their VMMs have them open.
func TestSecondDaemonOfAName(t *testing.T) {
	h := harness.New(t, harness.Options{Images: true, Godwitd: true})
	n := h.Node(0)
	n.Ctr(t, "run", "-d", "--cni", "--runtime", runtimeName, images.Busybox, "net", "sleep", "100000")
	taps := func() string {
		out, err := n.Run(t.Context(), "sh", "-c", "for f in /proc/[0-9]*; do nsenter --net=$f/ns/net ip -o link; done "+
			"2>/dev/null | grep -o 'godwit/default/net/n[0-9a-f]*' | sort -u")
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	before := taps()
	if !strings.HasPrefix(before, "godwit/default/net/n") {
		t.Fatalf("its tap is not seen: %q", before)
	}
	text, err := os.ReadFile(n.Config)
	if err != nil {
		t.Fatal(err)
	}
	second := func(run string) string { // the configuration of a second daemon with another run_dir
		path := filepath.Join(t.TempDir(), "config.toml")
		config := strings.NewReplacer(fmt.Sprintf("run_dir = %q", filepath.Join(n.Dir, "run")),
			fmt.Sprintf("run_dir = %q", run), fmt.Sprintf("ram_dir = %q", filepath.Join(n.Dir, "ram")),
			fmt.Sprintf("ram_dir = %q", run+"/ram")).Replace(string(text))
		if strings.Count(config, run) != 2 {
			t.Fatalf("the configuration has no run_dir or no ram_dir:\n%s", config)
		}
		if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	hidden := func(config string, seconds int) (string, error) { // it sees another state_dir of that path
		return n.Run(t.Context(), "unshare", "-m", "sh", "-c", fmt.Sprintf("mount -t tmpfs none %s/lib && "+
			"timeout -k 5 %d godwitd --config %s 2>&1", n.Dir, seconds, config))
	}
	out, err := hidden(second(filepath.Join(n.Dir, "run2")), 30)
	if err == nil || !strings.Contains(out+err.Error(), "another godwitd runs here with node") {
		t.Errorf("a second daemon of the name: %s, %v", out, err)
	}
	out, _ = hidden(second(filepath.Join(n.Dir, "elsewhere", "run")), int((40 * time.Second).Seconds())) // two rounds
	if !strings.Contains(out, "godwitd serves") {
		t.Errorf("a daemon that the lock cannot see does not run: %s", out)
	}
	if after := taps(); after != before {
		t.Errorf("taps were %q and are %q", before, after)
	}
	if got := n.Ctr(t, "task", "exec", "--exec-id", "look", "net", "echo", "here"); !strings.Contains(got, "here") {
		t.Errorf("the VM says %q", got)
	}
	n.Ctr(t, "task", "delete", "--force", "net")
	n.Ctr(t, "container", "delete", "net")
	if vmms, err := n.VMMs(); err != nil || len(vmms) > 0 {
		t.Errorf("VMMs are left: %v, %v", vmms, err)
	}
}
