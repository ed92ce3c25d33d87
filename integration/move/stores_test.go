//go:build integration

package move

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"godwit.dev/godwit/integration/harness"
)

// A VM sleeps into each kind of store and wakes on another node from it. A store that does
// not let the node in costs the VM nothing.
func TestStores(t *testing.T) {
	t.Run("TLS and a password", func(t *testing.T) {
		h := harness.New(t, harness.Options{Nodes: 2, Registry: harness.TLSBasicAuth, Godwitd: true, Images: true})
		sleepAndWake(t, h, func(n *harness.Node) {
			file := filepath.Join(n.Dir, "docker", "config.json")
			right, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			login := func(text []byte) {
				if err := os.WriteFile(file, text, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			login([]byte("{}\n"))
			if out, err := n.RunGodwit(t.Context(), "hibernate", vm); err == nil ||
				!strings.Contains(err.Error(), "registry.docker_config") {
				t.Errorf("hibernate without a password: %s, %v", out, err)
			}
			login(right)
		})
	})
	t.Run("a directory of layouts", func(t *testing.T) {
		var layout string
		h := harness.New(t, harness.Options{Nodes: 2, Godwitd: true, Images: true, Config: func(n *harness.Node) string {
			layout = filepath.Join(filepath.Dir(n.Dir), "layout")
			return fmt.Sprintf("[registry]\nlayout = %q\n", layout)
		}})
		sleepAndWake(t, h, func(n *harness.Node) {
			aside := layout + ".aside"
			// it can be no directory
			if err := errors.Join(os.Rename(layout, aside), os.WriteFile(layout, nil, 0o600)); err != nil {
				t.Fatal(err)
			}
			if out, err := n.RunGodwit(t.Context(), "hibernate", vm); err == nil || !strings.Contains(err.Error(), layout) {
				t.Errorf("hibernate into a file: %s, %v", out, err)
			}
			if err := errors.Join(os.Remove(layout), os.Rename(aside, layout)); err != nil {
				t.Fatal(err)
			}
		}, "--snapshotter", "native") // the other node has its default
		if _, err := os.Stat(layout); err != nil {
			t.Errorf("where the snapshot lies: %v", err)
		}
	})
}

// sleepAndWake has a VM on the first node refused its sleep by what shut does, sleep, and
// wake on the second.
func sleepAndWake(t *testing.T, h *harness.Harness, shut func(*harness.Node), flags ...string) {
	a, b := h.Node(0), h.Node(1)
	watch := listen(t, h)
	booted := ask(t, h, boot(t, a, watch, flags...).From)
	shut(a)
	watch.Mark("refused")
	after(t, watch, "refused") // it runs on
	a.Godwit(t, "hibernate", vm)
	watch.Mark("wake")
	b.Godwit(t, "wake", "--on", b.Name, vm)
	now := ask(t, h, after(t, watch, "wake").From)
	if now.Nonce != booted.Nonce || now.BootID != booted.BootID || !now.FileOK {
		t.Errorf("the VM is another one: %+v, was %+v", now, booted)
	}
	if doubles, back := watch.Twice(); doubles != 0 || back != 0 {
		t.Errorf("%d beacons came twice, %d went back", doubles, back)
	}
	remove(t, b, vm)
}
