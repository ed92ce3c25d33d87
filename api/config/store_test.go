package config

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// A node that names no store has its own below state_dir. Alone, it asks no records before its daemon has made them;
// a file that cannot be looked at may be there.
func TestOwnStore(t *testing.T) {
	dir := t.TempDir()
	parse := func(state, more string) *Config {
		t.Helper()
		c, err := Parse("t", []byte(fmt.Sprintf("state_dir = %q\n%s", state, more)))
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	c := parse(dir, "")
	if !c.Registry.Own || c.Registry.Layout != filepath.Join(dir, "store") || !c.HasStore() {
		t.Errorf("without a word of it: %+v", c.Registry)
	}
	if c.UsesRecords() {
		t.Error("a node whose daemon never ran asks for records")
	}
	if !parse(dir, "[controller]\naddress = 'a:1'\n").UsesRecords() {
		t.Error("a node of a cluster asks for none")
	}
	if c := parse(dir, "[registry]\nlayout = '/a'\n"); c.Registry.Own || !c.UsesRecords() {
		t.Errorf("with a layout: %+v", c.Registry)
	}
	if err := os.WriteFile(c.RecordsFile(), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if !c.UsesRecords() {
		t.Error("beside the file of the records none is asked for")
	}
	if !parse(filepath.Join(c.RecordsFile(), "x"), "").UsesRecords() {
		t.Error("a state_dir that cannot be looked at counts as one without records")
	}
}
