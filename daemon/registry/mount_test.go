package registry

import (
	"os"
	"path/filepath"
	"testing"

	"godwit.dev/godwit/api/config"
	"godwit.dev/godwit/snapshot/store"
)

// godwitd may start before the file system of registry.layout is mounted. What it asks then, and what a doctor or a
// hibernate that is to come asks, claims no directory: the one that is mounted later is used.
func TestQuestionsBeforeTheMount(t *testing.T) {
	root := filepath.Join(t.TempDir(), "layout")
	node := func(name string) *Registry {
		cfg := config.Default()
		cfg.Node, cfg.Registry.Layout, cfg.StateDir = name, root, t.TempDir()
		return New(cfg)
	}
	claim := func(r *Registry) error {
		st, err := r.Open(t.Context(), store.LayoutPrefix+root+"/uid1")
		if err != nil {
			return err
		}
		return store.Claim(st)
	}
	a, b := node("a"), node("b")
	if err := os.Mkdir(root, 0o700); err != nil {
		t.Fatal(err)
	}
	a.AskRights(t.Context())
	if where, err := a.Probe(t.Context()); err != nil {
		t.Errorf("doctor in %s: %v", where, err)
	}
	if err := a.Accepts(t.Context(), store.LayoutPrefix+root+"/uid1"); err != nil {
		t.Errorf("before a hibernate: %v", err)
	}
	if notes, err := os.ReadDir(a.Config.StoresDir()); len(notes) != 0 {
		t.Errorf("notes of questions: %v, %v", notes, err)
	}
	if err := os.Rename(root, root+".below"); err != nil {
		t.Fatal(err)
	}
	for _, r := range []*Registry{b, a} { // what is mounted now is b's first
		if err := claim(r); err != nil {
			t.Errorf("node %s, once it is mounted: %v", r.Config.Node, err)
		}
	}
	if _, err := a.Probe(t.Context()); err != nil {
		t.Errorf("doctor, once it is mounted: %v", err)
	}
}
