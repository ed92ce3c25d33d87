package record

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// repositoryPart is a part of a repository's name, as the specification of OCI's distribution has it.
var repositoryPart = regexp.MustCompile(`^[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*$`)

func TestIsUID(t *testing.T) {
	const id = "8c1b2a3e-0000-4000-8000-000000000001"
	for name, want := range map[string]bool{
		id: true, id + ".main": true, id + ".a-1": true, id + "." + strings.Repeat("m", 63): true,
		"": false, "golden": false, "web": false, id + ".": false, id + ".a.b": true, id + ".a..b": false, id + ".a.": false,
		id + ".A": false, id + ".a/b": false,
		id + ".." + "x": false, ".main": false, "web.main": false, id + "." + strings.Repeat("m", 64): false,
		id + ".tmp~": false, "x" + id: false,
		".": false, "..": false, "...": false, id + "..": false, id + "...": false, id + "/main": false, "../" + id: false,
		id + ".a/../b": false, id + ".-a": false, id + ".a-": false, id + ".a_b": false, id + ".a--b": true,
		id + ".a\n":   false,
		id + ".a\x00": false, "{" + id + "}": false, "urn:uuid:" + id: false, strings.ReplaceAll(id, "-", ""): false,
		strings.ToUpper(id): false, strings.ToUpper(id) + ".main": false,
	} {
		if got := IsUID(name); got != want {
			t.Errorf("%q: %t", name, got)
		}
		// It is the last part of a repository: one name of a directory, which OCI's distribution allows.
		if part := IsUID(name) && !repositoryPart.MatchString(name); part || IsUID(name) && filepath.Base(name) != name {
			t.Errorf("%q is no part of a repository", name)
		}
	}
}
