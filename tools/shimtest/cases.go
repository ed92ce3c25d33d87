// Package shimtest runs containerd's conformance suites against the built shim. It is a
// module of its own, so that the dependencies of the suites are not those of godwit.
package shimtest

import (
	_ "embed"
	"strings"
)

//go:embed cases.txt
var cases string

// Cases returns the names of the list's cases, those that run and those left out.
func Cases() (run, leftOut []string) {
	for line := range strings.Lines(cases) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if rest, ok := strings.CutPrefix(line, "- "); ok {
			name, _, _ := strings.Cut(rest, ":")
			leftOut = append(leftOut, name)
			continue
		}
		run = append(run, line)
	}
	return run, leftOut
}
