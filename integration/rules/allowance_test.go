package rules

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Lists in testdata say what may still be found in packages that are not clean. A package that is moved takes its
// line along.
var update = flag.Bool("update", false, "bring the counts of testdata/*-packages.txt down to what is found, never up")

// counts reads a list: lines of a package and what may still be found in it.
func counts(list []byte) (map[string]int, error) {
	all := map[string]int{}
	for line := range strings.Lines(string(list)) {
		var dir string
		var n int
		if _, err := fmt.Sscanf(line, "%s %d\n", &dir, &n); err != nil || n <= 0 || all[dir] != 0 {
			return nil, fmt.Errorf("%q is not one package, once, and a number above zero: %w", line, err)
		}
		all[dir] = n
	}
	return all, nil
}

// compare holds what is found, by package, against the counts of a list. It answers what is wrong
// and the counts that are right: those of the list, less where less is found.
func compare(found map[string][]string, listed map[string]int) (wrong []string, right map[string]int) {
	right = map[string]int{}
	for dir, n := range listed {
		if now := len(found[dir]); now < n {
			wrong = append(wrong, fmt.Sprintf("%s has %d, the list says %d: bring it down with "+
				"`go test ./integration/rules -run 'Comments|Columns' -update`", dir, now, n))
		}
	}
	for dir, what := range found {
		if n := listed[dir]; len(what) > n {
			slices.Sort(what)
			wrong = append(wrong, fmt.Sprintf("%s has %d, the list allows %d:\n\t%s",
				dir, len(what), n, strings.Join(what, "\n\t")))
		}
		if n := min(len(what), listed[dir]); n > 0 {
			right[dir] = n
		}
	}
	slices.Sort(wrong)
	return wrong, right
}

// checkPackages looks through all files and holds what it finds against a list in testdata.
func checkPackages(t *testing.T, list string, find func(name string, data []byte) ([]string, error)) {
	t.Helper()
	found := map[string][]string{}
	for name, data := range goFiles(t) {
		what, err := find(name, data)
		if err != nil {
			t.Fatal(err)
		}
		found[path.Dir(name)] = append(found[path.Dir(name)], what...)
	}
	file := filepath.Join("testdata", list)
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	listed, err := counts(data)
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	wrong, right := compare(found, listed)
	if *update {
		var lines strings.Builder
		for _, dir := range slices.Sorted(maps.Keys(right)) {
			fmt.Fprintln(&lines, dir, right[dir])
		}
		if err := os.WriteFile(file, []byte(lines.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		wrong, _ = compare(found, right) // what is more than the list allowed stays wrong
	}
	for _, w := range wrong {
		t.Errorf("%s: %s", list, w)
	}
}
