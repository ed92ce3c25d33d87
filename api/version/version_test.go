package version_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"godwit.dev/godwit/api/version"
)

func TestWrite(t *testing.T) {
	var text, doc bytes.Buffer
	if err := version.Write(&text, "prog", false); err != nil {
		t.Fatal(err)
	}
	if err := version.Write(&doc, "prog", true); err != nil {
		t.Fatal(err)
	}
	var got struct {
		Program, Version, Commit, Go string
		Protocols                    map[string]int
	}
	if err := json.Unmarshal(doc.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if got.Program != "prog" || got.Version != version.Version || got.Commit != version.Commit || got.Go == "" {
		t.Errorf("%+v", got)
	}
	if len(got.Protocols) != len(version.All()) {
		t.Errorf("%d protocols, the table has %d", len(got.Protocols), len(version.All()))
	}
	for _, k := range version.All() {
		if got.Protocols[k.Name] != k.Version {
			t.Errorf("%s is %d, want %d", k.Name, got.Protocols[k.Name], k.Version)
		}
		if want := fmt.Sprintf("%s v%d", k.Name, k.Version); !strings.Contains(text.String(), want) {
			t.Errorf("the text lacks %q: %s", want, &text)
		}
	}
}

// A number that changes, and a name that comes, is a decision about old programs.
func TestCompatibilityPageHasTheTable(t *testing.T) {
	page, err := os.ReadFile("../../docs/reference/compatibility.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range version.All() {
		if row := fmt.Sprintf("\n| %s | %d |", k.Name, k.Version); !strings.Contains(string(page), row) {
			t.Errorf("docs/reference/compatibility.md has no row %q", strings.TrimSpace(row))
		}
	}
}
