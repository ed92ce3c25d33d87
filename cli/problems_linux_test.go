package cli

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/record"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

var update = flag.Bool("update", false, "write the errors into docs/reference/errors.md")

// states of a VM web, as a refused call tells them.
var states = map[string]*nodev1.Record{
	"runs on node b":  {Owner: &nodev1.Owner{Node: "b"}},
	"sleeps":          {Owner: &nodev1.Owner{Digest: someDigest}},
	"has ended":       {},
	"is put to sleep": {Operation: &nodev1.Operation{Id: "op-1", Kind: nodev1.Kind_KIND_HIBERNATE, Source: "a"}},
	"wakes":           {Operation: &nodev1.Operation{Id: "op-1", Kind: nodev1.Kind_KIND_WAKE, Destination: "b"}},
	"moves": {Operation: &nodev1.Operation{Id: "op-1", Kind: nodev1.Kind_KIND_MIGRATE, Source: "a",
		Destination: "b"}},
	"has a checkpoint":    {Operation: &nodev1.Operation{Id: "op-1", Kind: nodev1.Kind_KIND_CHECKPOINT, Source: "a"}},
	"is being removed":    {Owner: &nodev1.Owner{Node: "a"}, Deletion: &nodev1.Deletion{Id: "op-1"}},
	"was lost":            {Lost: someDigest},
	"was lost in a move":  {Owner: &nodev1.Owner{Node: "b"}, Kept: &nodev1.Kept{Node: "a", Destination: "b"}},
	"is claimed by nodes": {Rivals: true, Conflict: "node a and node b both say that they have it"},
}

// verbsOnVMs are those that a VM's state can be in the way of. The daemon decides about the first ones. The others are
// about a VM of this node's containerd.
var verbsOnVMs = [][]string{
	{"hibernate web", "wake web", "checkpoint web", "checkpoint --every 1m web", "migrate web", "recover web", "rm web",
		"rm --final-snapshot web", "rm --cancel web"},
	{"exec web true", "attach web", "cp web:/etc/hostname -", "cp web:/etc /tmp", "top web", "stats web", "start web",
		"start -a web", "stop web", "restart web", "kill web", "rename web shop", "port web"},
}

// complains answers what a command line says on standard error, and its exit code.
func complains(t *testing.T, socket, line string) (string, int) {
	t.Helper()
	var out, log strings.Builder
	args := append([]string{"-n", "default", "--socket", socket}, strings.Fields(line)...)
	code := Run(t.Context(), args, &out, &log)
	return strings.ReplaceAll(strings.TrimSpace(log.String()), socket, "SOCKET"), code
}

// internal are words that a user needs not know.
var internal = regexp.MustCompile(`\b(record|generation|journal|godwit: godwit)\b`)

// Each verb names the state that a VM is in, in the same words whichever the verb is, with a command that leads on. It
// says no class and no word of the inside. docs/reference/errors.md has the texts.
func TestStatesInTheWay(t *testing.T) {
	empty := containerdWith(t)
	var rows []string
	for state, rec := range states {
		rec.Vm, rec.Generation = &nodev1.VM{Namespace: "default", Id: "web"}, 7
		held := &record.HeldError{Call: "open operation op-2", Record: rec}
		socket := served(t, refuser{rec: rec, err: held}, movesRefused{err: held})
		var texts []string
		for group, verbs := range verbsOnVMs {
			if group == 1 && !holdsHere(rec) {
				continue
			}
			for _, verb := range verbs {
				text, code := complains(t, socket, "--containerd "+empty+" "+verb)
				if want := exitOf(verb); code != want {
					t.Errorf("%s of a VM that %s: exit code %d, want %d: %s", verb, state, code, want, text)
				}
				checkText(t, verb+" of a VM that "+state, text)
				texts = append(texts, text)
			}
		}
		slices.Sort(texts)
		if all := slices.Compact(texts); len(all) != 1 {
			t.Errorf("a VM that %s: %q", state, all)
		}
		rows = append(rows, fmt.Sprintf("| %s | %s |", state, texts[0]))
	}
	slices.Sort(rows)
	table := "| web .. | says |\n|---|---|\n" + strings.Join(rows, "\n") + "\n"
	inPage(t, "states", strings.ReplaceAll(table, someDigest, "sha256:0f0f.."))
}

// holdsHere reports whether a state keeps containerd of node a from having the VM. An operation alone does not: a VM
// that is put to sleep runs here until then.
func holdsHere(rec *nodev1.Record) bool {
	return rec.GetRivals() || record.IsLost(rec) || rec.GetOwner().GetDigest() != "" ||
		rec.GetOwner().GetNode() != "" && rec.GetOwner().GetNode() != "a"
}

// exitOf is the exit code of a verb that meets a state: those that run a command end as docker's do.
func exitOf(verb string) int {
	if strings.HasPrefix(verb, "exec") {
		return exitOwn
	}
	return 4
}

// A VM that this node's containerd has, or nothing has, is told apart by every verb.
func TestStatesHere(t *testing.T) {
	var rows []string
	for _, c := range []struct {
		state string
		has   []string
		verbs []string
		code  int
	}{
		{"web has ended, and its container is here", []string{"web"}, []string{"exec web true", "attach web",
			"cp web:/etc/hostname -", "top web", "stats web", "kill web"}, 4},
		{"web was renamed shop, and has ended", []string{"web/shop"}, []string{"exec shop true", "attach shop",
			"cp shop:/etc/hostname -", "top shop", "stats shop", "kill shop"}, 4},
		{"there is no VM wbe, but web", []string{"7a31/web"}, slices.Concat(replacedIn(verbsOnVMs[0], "web", "wbe"),
			replacedIn(verbsOnVMs[1], "web", "wbe"), []string{"inspect wbe", "logs wbe", "snapshot ls wbe",
				"snapshot history wbe", "snapshot prune wbe"}), 3},
		{"7a31 and 7a99 both begin with 7a", []string{"7a31", "7a99"}, slices.Concat(replacedIn(verbsOnVMs[0], "web", "7a"),
			replacedIn(verbsOnVMs[1], "web", "7a"), []string{"inspect 7a", "logs 7a", "snapshot ls 7a",
				"snapshot history 7a", "snapshot prune 7a"}), 2},
		{"another VM is called shop", []string{"7a31/web", "7a99/shop"}, []string{"rename web shop"}, 4},
	} {
		containerd := containerdWith(t, c.has...)
		socket := served(t, refuser{}, movesRefused{})
		var texts []string
		for _, verb := range c.verbs {
			text, code := complains(t, socket, "--containerd "+containerd+" "+verb)
			want := c.code
			if strings.HasPrefix(verb, "exec") {
				want = exitOwn
			}
			if code != want {
				t.Errorf("%s: %s: exit code %d, want %d: %s", verb, c.state, code, want, text)
			}
			if c.code != 2 {
				checkText(t, verb+": "+c.state, text)
			}
			texts = append(texts, text)
		}
		slices.Sort(texts)
		if all := slices.Compact(texts); len(all) != 1 {
			t.Errorf("%s: %q", c.state, all)
		}
		rows = append(rows, fmt.Sprintf("| %s | %s |", c.state, texts[0]))
	}
	inPage(t, "here", "| state | says |\n|---|---|\n"+strings.Join(rows, "\n")+"\n")
}

func replacedIn(lines []string, old, other string) (all []string) {
	for _, line := range lines {
		all = append(all, strings.Replace(line, old, other, 1))
	}
	return all
}

// checkText wants the shape of an error: the program once, no class, no inner word, and a command to go on with.
func checkText(t *testing.T, what, text string) {
	t.Helper()
	if !strings.HasPrefix(text, "godwit") || strings.Count(text, "godwit: ") > 1 || internal.MatchString(text) ||
		!strings.Contains(strings.TrimPrefix(text, "godwit"), "godwit") {
		t.Errorf("%s: %s", what, text)
	}
	for _, c := range classes {
		if strings.HasSuffix(strings.TrimSuffix(text, "."), c.class.Error()) {
			t.Errorf("%s: a class at its end: %s", what, text)
		}
	}
}

// inPage compares a table with the page of errors, between two marks, or writes it there.
func inPage(t *testing.T, mark, table string) {
	t.Helper()
	const page = "../docs/reference/errors.md"
	data, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	begin, end := "<!-- "+mark+": made by go test ./cli -update -->\n", "<!-- end of "+mark+" -->"
	before, rest, found := strings.Cut(string(data), begin)
	is, after, ends := strings.Cut(rest, end)
	if !found || !ends {
		t.Fatalf("%s has no place for %s", page, mark)
	}
	if is == table {
		return
	}
	if !*update {
		t.Errorf("%s has other %s: go test ./cli -run %s -update\n%s", page, mark, t.Name(), table)
		return
	}
	if err := os.WriteFile(page, []byte(before+begin+table+end+after), 0o644); err != nil {
		t.Fatal(err)
	}
}

// What is wrong with a command line, a name or a daemon is told in the same shape.
func TestMistakesInThePage(t *testing.T) {
	seen := daemonOf(t)
	none := place(t)
	gone := refusing(t, fmt.Errorf("ask the controller at HOST:7412: connection refused. Start godwitd there: %w",
		errdefs.ErrUnavailable))
	var rows []string
	for _, c := range []struct{ socket, line string }{
		{seen, "pss"}, {seen, "snapshot lss"}, {seen, "frobnicate"}, {seen, "ps --filtre a=b"}, {seen, "ps extra"},
		{seen, "hibernate"}, {seen, "hibernate wbe"}, {seen, "hibernate nothing"}, {seen, "ps -o toml"},
		{seen, "ps -f colour"}, {seen, "wake --timeout 5s web"}, {seen, "rm --force --final-snapshot web"}, {none, "ps"},
		{gone, "hibernate web"},
	} {
		text, code := complains(t, c.socket, c.line)
		if code == 0 || internal.MatchString(text) || strings.Count(text, "godwit: ") > 1 {
			t.Errorf("godwit %s: exit code %d: %s", c.line, code, text)
		}
		rows = append(rows, fmt.Sprintf("| `%s` | %d | %s |", c.line, code, strings.ReplaceAll(text, "|", "\\|")))
	}
	inPage(t, "mistakes", "| godwit .. | exit code | says |\n|---|---|---|\n"+strings.Join(rows, "\n")+"\n")
}

// A typo gets the verb, the flag or the VM that was meant; a word that is far from all of them gets the list.
func TestMeant(t *testing.T) {
	socket := daemonOf(t)
	for line, want := range map[string]string{
		"pss": "Did you mean ps?", "hibernte web": "Did you mean hibernate?", "lgos web": "",
		"snapshot pinn":   "Did you mean pin",
		"ps --filtre a=b": "Did you mean --filter?", "wake --stdoi x web": "Did you mean --stdio?",
		"hibernate wbe": "Did you mean web?", "migrate databse-primary": "Did you mean database-primary?",
		"hibernate zzzzzz": "", "wake ab": "",
	} {
		text, _ := complains(t, socket, line)
		if want == "" && strings.Contains(text, "hibernate?") || !strings.Contains(text, want) {
			t.Errorf("godwit %s: %s, want %q", line, text, want)
		}
	}
}

// JSON has the parts, the class and the exit code; --verbose adds what was passed on.
func TestPartsOfAnError(t *testing.T) {
	rec := &nodev1.Record{Vm: &nodev1.VM{Namespace: "default", Id: "web"}, Owner: &nodev1.Owner{Node: "b"}, Generation: 7}
	socket := refusing(t, &record.HeldError{Call: "open operation op-2", Record: rec})
	text, _ := complains(t, socket, "-o json hibernate web")
	for _, want := range []string{`"class":"FailedPrecondition"`, `"exit":4`, `"what":"web runs on node b."`,
		`"remedy":"To move it here: godwit migrate web --to a.`,
		`"details":"open operation op-2: node b owns it at generation 7`} {
		if !strings.Contains(text, want) {
			t.Errorf("no %s in %s", want, text)
		}
	}
	if text, _ = complains(t, socket, "hibernate -v web"); !strings.Contains(text, "at generation 7: failed precondition "+
		"(FailedPrecondition, exit code 4)") {
		t.Error(text)
	}
	if text, _ = complains(t, socket, "-o yaml hibernate web"); !strings.Contains(text, "  exit: 4\n") {
		t.Error(text)
	}
}

// A class is taken out of a text however often it stands there, and so is what is said twice. Nothing else is.
func TestBare(t *testing.T) {
	for want, err := range map[string]error{
		"a: b.":                fmt.Errorf("a: b.: %w", errdefs.ErrNotFound),
		"a":                    fmt.Errorf("godwit: a: %w: %w", errdefs.ErrNotFound, errdefs.ErrUnavailable),
		"web is not found":     errors.New("web is not found"),
		"unavailable":          errdefs.ErrUnavailable,
		"read: no such file":   fmt.Errorf("read: no such file: %w", errdefs.ErrFailedPrecondition),
		"operation o goes on":  fmt.Errorf("operation o goes on: %w", context.Canceled),
		"not found: web, here": errors.New("not found: web, here"),
		"a: b":                 fmt.Errorf("a: %w: b: a: %w", errdefs.ErrUnavailable, errdefs.ErrFailedPrecondition),
		"a. To go on: b":       fmt.Errorf("a: %w. To go on: b", errdefs.ErrUnavailable),
		"a; b":                 fmt.Errorf("a: %w\nb", errdefs.ErrInvalidArgument),
		"no such file": errors.New("fetch VM default/web (operation 1-2): " +
			"rpc error: code = NotFound desc = no such file"),
		"open /x: permission denied": fmt.Errorf("open /x: permission denied: %w", errdefs.ErrPermissionDenied),
	} {
		if got := bare(err); got != want {
			t.Errorf("%v: %q, want %q", err, got, want)
		}
	}
}
