package cli

import (
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// The exit code goes by severity: warnings alone are a failure only if asked for.
func TestVerdictOfDoctor(t *testing.T) {
	ok := finding{Check: "a", OK: true}
	warn := finding{Check: "slow", Remedy: "be patient"}
	fatal := finding{Check: "dead", Fatal: true, Remedy: "revive"}
	for _, c := range []struct {
		name     string
		findings []finding
		strict   bool
		names    string // the check that the error names; empty: no error
	}{
		{"all well", []finding{ok, ok}, true, ""},
		{"a warning", []finding{ok, warn}, false, ""},
		{"a warning, strict", []finding{ok, warn}, true, "slow: be patient"},
		{"no VM runs", []finding{ok, warn, fatal}, false, "dead: revive"},
	} {
		err := verdict(c.findings, c.strict)
		if c.names == "" {
			if err != nil {
				t.Errorf("%s: %v", c.name, err)
			}
			continue
		}
		if _, exit := classify(err); !errdefs.IsFailedPrecondition(err) || exit != 4 ||
			!strings.Contains(err.Error(), c.names) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

func TestWhatTheDaemonTells(t *testing.T) {
	all := told(&nodev1.InfoResponse{
		Controller: "c:1", Error: "no route",
		Checks: []*nodev1.Check{{Name: "store", Detail: "r/x"}, {Name: "containerd", Error: "refused", Remedy: "start it"}},
	})
	if len(all) != 3 || all[0].OK || all[0].Detail != "no route" || !strings.Contains(all[0].Remedy, "c:1") {
		t.Errorf("controller: %+v", all)
	}
	if !all[1].OK || all[1].Detail != "r/x" || all[2].OK || all[2].Detail != "refused" || all[2].Remedy != "start it" {
		t.Errorf("checks: %+v", all[1:])
	}
}
