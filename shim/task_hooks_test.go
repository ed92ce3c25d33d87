package shim

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// hooked makes every hook of the world's task write its kind and the state that it got.
func (w *world) hooked() (told func() []string) {
	out := filepath.Join(w.t.TempDir(), "hooks")
	hook := func(kind string) []specs.Hook {
		return []specs.Hook{{Path: "/bin/sh", Args: []string{"sh", "-c", "echo " + kind + " $(cat) >>" + out}}}
	}
	w.hooks = &specs.Hooks{Prestart: hook("prestart"), CreateRuntime: hook("createRuntime"), Poststart: hook("poststart"),
		Poststop: hook("poststop")}
	return func() (all []string) {
		w.t.Helper()
		data, err := os.ReadFile(out)
		if err != nil {
			w.t.Fatal(err)
		}
		for line := range strings.Lines(string(data)) {
			kind, text, _ := strings.Cut(line, " ")
			var s specs.State
			if err := json.Unmarshal([]byte(text), &s); err != nil {
				w.t.Fatalf("%s got %q: %v", kind, text, err)
			}
			if s.ID != "vm" || s.Bundle == "" || s.Annotations["a"] != "b" || s.Version == "" ||
				(s.Pid == 0) != (s.Status == specs.StateStopped) {
				w.t.Errorf("%s got %s", kind, text)
			}
			all = append(all, kind+" "+string(s.Status))
		}
		return all
	}
}

// OCI hooks run at their points, each once, with the state of the container.
func TestHooksOfALife(t *testing.T) {
	before := []string{"prestart creating", "createRuntime creating"}
	whole := append(append([]string(nil), before...), "poststart running", "poststop stopped")
	for name, c := range map[string]struct {
		live func(*world)
		want []string
	}{
		"a life": {func(w *world) {
			w.running()
			w.must("kill", w.kill("", 9))
			w.wait("")
			w.must("delete", w.delete())
		}, whole},
		"a shim that died": {func(w *world) {
			w.running()
			for range 2 {
				_, err := CleanUp(t.Context(), w.host(), w.cfg.VMDir("ns", "vm"), "")
				w.must("clean up", err)
			}
		}, whole},
		"a shim that left": {func(w *world) {
			w.running()
			w.must("kill", w.kill("", 9))
			w.wait("")
			w.must("delete", w.delete())
			_, err := CleanUp(t.Context(), w.host(), w.cfg.VMDir("ns", "vm"), "")
			w.must("clean up", err)
		}, whole},
		"a create that fails": {func(w *world) {
			w.hooks.CreateRuntime = append(w.hooks.CreateRuntime, specs.Hook{Path: "/bin/false"})
			if err := w.create(); err == nil || !strings.Contains(err.Error(), "createRuntime hook 1 /bin/false") {
				t.Errorf("create = %v", err)
			}
		}, append(append([]string(nil), before...), "poststop stopped")},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			told := w.hooked()
			c.live(w)
			if diff := cmp.Diff(c.want, told()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// Hooks that want the container's namespaces are refused by name.
func TestHooksRefused(t *testing.T) {
	for name, hooks := range map[string]*specs.Hooks{
		"createContainer": {CreateContainer: []specs.Hook{{Path: "/bin/true"}}},
		"startContainer":  {StartContainer: []specs.Hook{{Path: "/bin/true"}}},
	} {
		w := newWorld(t)
		w.hooks = hooks
		if err := w.create(); err == nil || !strings.Contains(err.Error(), "hooks."+name) {
			t.Errorf("%s: create = %v", name, err)
		}
	}
}
