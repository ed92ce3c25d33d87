//go:build integration

package badinput

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/integration/images"
)

// What cannot be run is refused before anything starts, by name, and leaves nothing.
func TestCreateRefused(t *testing.T) {
	h := harness.New(t, harness.Options{Registry: harness.PlainHTTP, Godwitd: true, Images: true})
	n := h.Node(0)
	n.CheckClean(t)
	for i, c := range []struct {
		name   string
		image  string            // default: busybox
		flags  []string          // of ctr run
		config map[string]string // replaced in the node's configuration
		class  string
		words  []string
	}{
		{name: "image without entrypoint", image: images.NoEntrypoint,
			flags: []string{"--annotation", "godwit.dev/image=" + images.NoEntrypoint},
			class: "InvalidArgument", words: []string{"process.args", images.NoEntrypoint, "command"}},
		{name: "unknown annotation", flags: []string{"--annotation", "godwit.dev/memroy=1GiB"},
			class: "InvalidArgument", words: []string{"godwit.dev/memroy", "godwit.dev/memory"}},
		{name: "annotation out of range", flags: []string{"--annotation", "godwit.dev/vcpus=0"},
			class: "InvalidArgument", words: []string{"godwit.dev/vcpus", "between 1 and 240"}},
		{name: "more RAM than the pool", flags: []string{"--annotation", "godwit.dev/memory=5GiB"},
			class: "ResourceExhausted", words: []string{"5GiB", "4GiB", "ram_size"}},
		{name: "guest kernel missing", config: map[string]string{"kernel = ": `kernel = "/nowhere/vmlinuz"`},
			class: "FailedPrecondition", words: []string{"guest.kernel", "/nowhere/vmlinuz"}},
		{name: "initramfs missing", config: map[string]string{"initrd = ": `initrd = "/nowhere/initramfs"`},
			class: "FailedPrecondition", words: []string{"guest.initrd", "/nowhere/initramfs"}},
		{name: "kernel panic", config: map[string]string{"cmdline = ": `cmdline = "rdinit=/nowhere init=/nowhere"`},
			class: "Unavailable", words: []string{"its agent does not answer", "Kernel panic", "console.log"}},
		{name: "QEMU missing", config: map[string]string{"kind = ": "kind = \"qemu\"\nqemu = \"/nowhere/qemu\""},
			class: "FailedPrecondition", words: []string{"vmm.qemu", "/nowhere/qemu"}},
		{name: "unknown key", config: map[string]string{"ram_size = ": "ram_sice = \"4GiB\""},
			class: "InvalidArgument", words: []string{"ram_sice", ".toml", "unknown"}},
		{name: "host network", config: map[string]string{"node = ": "host_network = \"refuse\"\nnode = \"a\""},
			flags: []string{"--net-host"},
			class: "InvalidArgument", words: []string{"network namespace", "host_network"}},
		{name: "full state_dir", config: map[string]string{"state_dir = ": `state_dir = "` + stateOn(t, n, "size=4k") + `"`},
			class: "ResourceExhausted", words: []string{"state_dir", "no space left"}},
		{name: "read-only state_dir", config: map[string]string{"state_dir = ": `state_dir = "` + stateOn(t, n, "ro") + `"`},
			class: "FailedPrecondition", words: []string{"state_dir", "read-only file system"}},
		{name: "configuration missing", flags: []string{"--runtime-config-path", "/nowhere/config.toml"},
			class: "NotFound", words: []string{"/nowhere/config.toml"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.image == "" {
				c.image = images.Busybox
			}
			if c.config != nil {
				c.flags = append(c.flags, "--runtime-config-path", changed(t, n, c.config))
			}
			id := fmt.Sprintf("bad%d", i)
			args := append([]string{"run", "--rm", "--runtime", runtimeName}, c.flags...)
			ctrFails(t, n, append(args, c.image, id)...).want(t, c.class, c.words...)
			n.Ctr(t, "containers", "ls", "-q")
			if v, ok := look(t, n, id); ok && (v.Owner.Node != "" || v.Op != nil) {
				t.Errorf("the record says %+v of a VM that never was", v)
			}
		})
	}
	t.Run("unknown key for godwit and godwitd", func(t *testing.T) {
		path := changed(t, n, map[string]string{"ram_size = ": "ram_sice = \"4GiB\""})
		out, err := n.RunGodwit(t.Context(), "-o", "json", "--config", path, "ps")
		cliRefusal(t, out, err).want(t, "InvalidArgument", "ram_sice", path)
		if _, err := n.Run(t.Context(), "godwitd", "--config", path); err == nil ||
			!strings.Contains(err.Error(), "ram_sice") {
			t.Errorf("godwitd with an unknown key: %v", err)
		}
	})
	t.Run("godwitd down", func(t *testing.T) {
		if err := n.Godwitd.Kill(); err != nil {
			t.Fatal(err)
		}
		args := []string{"run", "--rm", "--runtime", runtimeName, images.Busybox, "down"}
		ctrFails(t, n, args...).want(t, "Unavailable", "godwitd", n.Dir)
		godwitFails(t, n, "ps").want(t, "Unavailable", "godwitd", n.Dir)
		if err := n.StartGodwitd(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
	// Nothing of all this stands in the way of a good VM of the same name.
	t.Run("good again", func(t *testing.T) {
		if out := n.Ctr(t, "run", "--rm", "--runtime", runtimeName, images.Busybox, "bad0", "echo", "well"); out != "well\n" {
			t.Errorf("output %q", out)
		}
	})
}

// stateOn makes a directory on a file system of its own, with these options.
func stateOn(t *testing.T, n *harness.Node, options string) string {
	t.Helper()
	dir := t.TempDir()
	if _, err := n.Run(t.Context(), "mount", "-t", "tmpfs", "-o", options, "state", dir); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := n.Run(context.WithoutCancel(t.Context()), "umount", dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// changed writes a configuration with lines replaced by what they begin with.
func changed(t *testing.T, n *harness.Node, lines map[string]string) string {
	t.Helper()
	data, err := os.ReadFile(n.Config)
	if err != nil {
		t.Fatal(err)
	}
	all := strings.Split(string(data), "\n")
	for begin, with := range lines {
		found := false
		for i := range all {
			if strings.HasPrefix(all[i], begin) {
				all[i], found = with, true
			}
		}
		if !found {
			t.Fatalf("no line of the configuration begins with %q", begin)
		}
	}
	path := filepath.Join(t.TempDir(), "config.toml")
	if err := os.WriteFile(path, []byte(strings.Join(all, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
