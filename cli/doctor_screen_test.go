package cli

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"godwit.dev/godwit/cli/screen"
)

// What doctor prints fits a screen of 24 lines and ends with one line of verdict, whatever it found. The worst comes
// first, and -v tells all.
func TestDoctorFitsAScreen(t *testing.T) {
	many := []finding{{Check: "configuration", OK: true}, {Check: storeCheck, OK: true, Detail: "here"}}
	for i := range 20 {
		many = append(many, finding{Check: fmt.Sprintf("well %d", i), OK: true})
	}
	for name, c := range map[string]struct {
		more    []finding
		verdict string
		first   string
	}{
		"all is well": {nil, "this node runs VMs; 22 checks are well, 0 have a warning", "ok"},
		"a warning":   {[]finding{{Check: "kvm", Detail: "none", Remedy: "load it"}}, "22 checks are well, 1 have", "warn"},
		"no VM runs": {[]finding{{Check: "slow"}, {Check: "dead", Fatal: true, Detail: "d", Remedy: "revive"}},
			"no VM can run here: mend what is marked FAIL (1)", "FAIL"},
		"more than fits": {func() (all []finding) {
			for i := range 30 {
				all = append(all, finding{Check: fmt.Sprintf("bad %d", i)})
			}
			return all
		}(), "11 are not shown", "warn"},
	} {
		t.Run(name, func(t *testing.T) {
			all := append(append([]finding{}, many...), c.more...)
			for _, verbose := range []bool{false, true} {
				var out bytes.Buffer
				opts := &options{verbose: verbose, output: string(screen.Text)}
				cmd := newDoctor(opts)
				cmd.SetOut(&out)
				if err := report(cmd, opts, all); err != nil {
					t.Fatal(err)
				}
				lines := strings.Split(strings.TrimRight(out.String(), "\n"), "\n")
				last := lines[len(lines)-1]
				if verbose && len(lines) != len(all)+2 || !verbose && len(lines) > 24 {
					t.Errorf("verbose %v: %d lines of %d findings:\n%s", verbose, len(lines), len(all), &out)
				}
				if !strings.HasPrefix(last, "verdict: ") || !verbose && !strings.Contains(last, c.verdict) {
					t.Errorf("verbose %v: the verdict is %q", verbose, last)
				}
				if !verbose && (len(lines) < 2 || !strings.HasPrefix(lines[1], c.first)) {
					t.Errorf("it does not begin with %s:\n%s", c.first, &out)
				}
			}
		})
	}
}
