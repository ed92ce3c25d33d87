package rules

import (
	"regexp"
	"strings"
	"testing"
)

// requirement is an id of a list that no reader has.
var requirement = regexp.MustCompile(`(^|[^A-Za-z0-9_#-])(S[0-9]-[0-9]{2}|[NPA]-[0-9]{2}|H[0-9]{2})([^A-Za-z0-9_]|$)`)

// No source and no page cites a requirement by an id that cannot be looked up.
func TestNoRequirementIDs(t *testing.T) {
	for file, data := range tracked(t) {
		if !strings.HasSuffix(file, ".go") && !strings.HasSuffix(file, ".md") && !strings.HasSuffix(file, ".sh") {
			continue
		}
		for n, line := range strings.Split(string(data), "\n") {
			if id := requirement.FindStringSubmatch(line); id != nil {
				t.Errorf("%s:%d cites %s: say in words what is meant", file, n+1, id[2])
			}
		}
	}
}
