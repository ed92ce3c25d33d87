package ring

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"godwit.dev/godwit/vmm/cloudhypervisor"
)

// capability is a row of the table by VMM.
type capability struct {
	name  string
	on    map[string]string // by VMM, one of the states
	cases []string
}

var (
	cellOf   = regexp.MustCompile("^(works|no|not yet|not run)(?:: (.+))?$")
	upstream = regexp.MustCompile(`\[#(\d+)\]\(https://github\.com(?:/cloud-hypervisor){2}/(?:issues|pull)/(\d+)\)`)
	quoted   = regexp.MustCompile("`([a-z]+)`")
)

// capabilities reads the table by VMM of a page, and the features that the page refers to it. What is wrong with a row
// by itself is in the errors.
func capabilities(page string) (all []capability, referred []string, wrong []error) {
	here := false
	for line := range strings.Lines(page) {
		if strings.HasPrefix(line, "## ") {
			here = strings.TrimSpace(line) == "## By VMM"
		}
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		if !here && len(cells) == 3 && cells[1] == "by VMM" {
			referred = append(referred, cells[0])
		}
		if !here || len(cells) < 2 || cells[0] == "capability" || strings.HasPrefix(cells[0], "---") {
			continue
		}
		c, err := row(cells)
		if err != nil {
			wrong = append(wrong, err)
			continue
		}
		all = append(all, c)
	}
	return all, referred, wrong
}

func row(cells []string) (c capability, err error) {
	if len(cells) != len(VMMs)+2 {
		return c, fmt.Errorf("%q: %d cells, want %d", cells[0], len(cells), len(VMMs)+2)
	}
	c = capability{name: cells[0], on: map[string]string{}}
	for i, name := range VMMs {
		cell := cells[i+1]
		m := cellOf.FindStringSubmatch(cell)
		switch {
		case m == nil:
			return c, fmt.Errorf("%q on %s: %q is none of works, no, not yet, not run", c.name, name, cell)
		case m[1] != "works" && m[2] == "":
			return c, fmt.Errorf("%q on %s: %q gives no reason", c.name, name, cell)
		}
		if issue := upstream.FindStringSubmatch(cell); m[1] == "no" && (issue == nil || issue[1] != issue[2]) {
			return c, fmt.Errorf("%q on %s: %q names no issue upstream", c.name, name, cell)
		}
		c.on[name] = m[1]
	}
	for _, m := range quoted.FindAllStringSubmatch(cells[len(cells)-1], -1) {
		c.cases = append(c.cases, m[1])
	}
	if len(c.cases) == 0 && cells[len(cells)-1] != "none" {
		return c, fmt.Errorf("%q: cases %q, want names of cases or none", c.name, cells[len(cells)-1])
	}
	return c, nil
}

// compare says where the table and the cases disagree.
func compare(table []capability, cases []Case) (wrong []error) {
	named := map[string]bool{}
	for _, c := range table {
		shown, byHand := map[string]bool{}, map[string]bool{} // byHand: by a case that wants a file
		for _, name := range c.cases {
			named[name] = true
			found := false
			for _, o := range cases {
				if found = found || o.Name == name; o.Name != name || o.host {
					continue
				}
				if o.needs != "" {
					byHand[o.VMM] = true
				} else {
					shown[o.VMM] = true
				}
			}
			if !found {
				wrong = append(wrong, fmt.Errorf("%q: there is no case %s", c.name, name))
			}
		}
		for _, name := range VMMs {
			if c.on[name] == "not run" || c.on[name] == "works" && byHand[name] {
				continue // a case may not have ended yet, or was run by hand
			}
			// QEMU has tests outside of the ring.
			if works := c.on[name] == "works"; works != shown[name] && (!works || name == cloudhypervisor.Name) {
				wrong = append(wrong, fmt.Errorf("%q on %s: the table says %s; that a case of %v runs there is %t", c.name, name,
					c.on[name], c.cases, shown[name]))
			}
		}
	}
	for _, o := range cases {
		if !named[o.Name] {
			wrong = append(wrong, fmt.Errorf("case %s is in no row", o.Name))
			named[o.Name] = true
		}
	}
	return wrong
}

// The table by VMM has no empty cell, agrees with the cases, and with what the drivers report.
func TestFeaturesByVMM(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "reference", "features.md"))
	if err != nil {
		t.Fatal(err)
	}
	table, referred, wrong := capabilities(string(page))
	cases, err := Cases()
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range append(wrong, compare(table, cases)...) {
		t.Error(err)
	}
	at := func(name string) int {
		return slices.IndexFunc(table, func(c capability) bool { return c.name == name })
	}
	for _, name := range referred {
		if at(name) < 0 {
			t.Errorf("%q refers to the table by VMM, which has no such row", name)
		}
	}
	if len(referred) == 0 {
		t.Error("no feature refers to the table by VMM")
	}
	for _, name := range VMMs {
		for capability, does := range reported(t, name) {
			if i := at(capability); i < 0 || (table[i].on[name] == "works") != does {
				t.Errorf("%q on %s: the driver reports %t, row %d of the table says otherwise", capability, name, does, i)
			}
		}
	}
}

// What the test of the table must find.
func TestFeaturesThatAreWrong(t *testing.T) {
	const head = "## By VMM\n| capability | QEMU | Cloud Hypervisor | cases |\n|---|---|---|---|\n"
	const issue = "([#7](https://github.com/cloud-hypervisor/cloud-hypervisor/issues/7))"
	cases, err := parse("move move ^T$\nlazy move ^T$ qemu\nwindows vmdisk ^T$ host\n")
	if err != nil {
		t.Fatal(err)
	}
	const rest = "| w | not run: x | not run: x | `windows` |\n| m | works | works | `move` |\n"
	for text, want := range map[string]string{
		"| l | works | not yet: x | `lazy` |\n":                                      "",
		"| l | works | no: x " + issue + " | `lazy` |\n":                             "",
		"| l | works | not yet: x | `lazy` |\n| p | works | not run: x | `move` |\n": "",
		"| l | works | no: x | `lazy` |\n":                                           "no issue upstream",
		"| l | works |  | `lazy` |\n":                                                "none of works",
		"| l | works | not yet | `lazy` |\n":                                         "gives no reason",
		"| l | works | works | `lazy` |\n":                                           "the table says works",
		"| l | works | not yet: x | `lazy` `move` |\n":                               "the table says not yet",
		"| l | works | works | none |\n":                                             "the table says works",
		"| l | works | not yet: x | `lazy` `other` |\n":                              "no case other",
		"| l | works | not yet: x |\n":                                               "3 cells",
		"| l | works | not yet: x |  |\n":                                            "want names of cases or none",
		"| l | works | works | `move` |\n":                                           "case lazy is in no row",
		"| l | works | not yet: x | `lazy` |\n| v | works | works | `windows` |\n":   "the table says works",
	} {
		table, _, wrong := capabilities(head + rest + text)
		got := fmt.Sprint(append(wrong, compare(table, cases)...))
		if want == "" && got != "[]" || !strings.Contains(got, want) {
			t.Errorf("%s: %s, want %q", text, got, want)
		}
	}
}
