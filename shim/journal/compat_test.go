package journal

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
)

// The journal of the first build, with every key: it is read, and written again with
// nothing lost or renamed. The file never changes; a key that comes later is optional.
func TestJournalOfVersion1(t *testing.T) {
	old, err := os.ReadFile("testdata/journal-v1.json")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(File(dir), old, 0o600); err != nil {
		t.Fatal(err)
	}
	j, err := Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := j.Write(dir); err != nil {
		t.Fatal(err)
	}
	now, err := os.ReadFile(File(dir))
	if err != nil {
		t.Fatal(err)
	}
	var want, got any
	if err := json.Unmarshal(old, &want); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(now, &got); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, only(got, want)); d != "" {
		t.Errorf("the journal of version 1 does not come back (-was +is):\n%s", d)
	}
}

// only answers what got has at the keys of want.
func only(got, want any) any {
	switch want := want.(type) {
	case map[string]any:
		g, _ := got.(map[string]any)
		out := map[string]any{}
		for k, v := range want {
			if _, ok := g[k]; ok {
				out[k] = only(g[k], v)
			}
		}
		return out
	case []any:
		g, _ := got.([]any)
		if len(g) != len(want) {
			return got
		}
		out := make([]any, len(want))
		for i := range want {
			out[i] = only(g[i], want[i])
		}
		return out
	}
	return got
}

// A journal of a later version is refused as such, and stays as it is.
func TestJournalOfALaterVersion(t *testing.T) {
	dir := t.TempDir()
	later := `{"version":99,"phase":"OWN"}`
	if err := os.WriteFile(filepath.Join(dir, "node.json"), []byte(later), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(dir); !errdefs.IsNotImplemented(err) || !strings.Contains(err.Error(), "version 99") {
		t.Errorf("error %v", err)
	}
	if now, err := os.ReadFile(filepath.Join(dir, "node.json")); err != nil || string(now) != later {
		t.Errorf("journal is %s, %v", now, err)
	}
}
