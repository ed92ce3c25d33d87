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
	"godwit.dev/godwit/migrate/controller"

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
	"was lost":            {Lost: someDigest},
	"was lost in a move":  {Owner: &nodev1.Owner{Node: "b"}, Kept: &nodev1.Kept{Node: "a", Destination: "b"}},
	"is claimed by nodes": {Rivals: true, Conflict: "node a and node b both say that they have it"},
}

// verbsOnVMs are those that a VM's state can be in the way of.
var verbsOnVMs = []string{"hibernate web", "wake web", "checkpoint web", "migrate web", "rm web"}

// refuser is a daemon whose VM is in a state that every call meets.
type refuser struct {
	nodev1.NodeService
	err error
}

// movesRefused are its moves.
type movesRefused struct {
	nodev1.MovesService
	err error
}

func (r refuser) Recorded(context.Context, *nodev1.GetRequest) (*nodev1.Record, error) {
	return &nodev1.Record{}, nil
}

func (r refuser) Hibernate(context.Context, *nodev1.HibernateRequest) (*nodev1.StatusResponse, error) {
	return nil, r.err
}

func (r refuser) Checkpoint(context.Context, *nodev1.CheckpointRequest) (*nodev1.StatusResponse, error) {
	return nil, r.err
}

func (r refuser) Forget(context.Context, *nodev1.ForgetRequest) (*nodev1.ForgetResponse, error) {
	return nil, r.err
}

func (r movesRefused) Wake(context.Context, *nodev1.WakeOrder) (*nodev1.StatusResponse, error) {
	return nil, r.err
}

func (r movesRefused) Migrate(context.Context, *nodev1.MigrateRequest) (*nodev1.StatusResponse, error) {
	return nil, r.err
}

// refusing serves a daemon that answers err.
func refusing(t *testing.T, err error) string {
	t.Helper()
	srv, serr := controller.NewServer()
	if serr != nil {
		t.Fatal(serr)
	}
	nodev1.RegisterNodeService(srv, refuser{err: err})
	nodev1.RegisterMovesService(srv, movesRefused{err: err})
	socket := place(t)
	t.Cleanup(serve(t, srv, socket))
	return socket
}

// said is what a command line says on standard error, and its exit code.
func complains(t *testing.T, socket, line string) (string, int) {
	t.Helper()
	var out, log strings.Builder
	args := append([]string{"-n", "default", "--socket", socket}, strings.Fields(line)...)
	code := Run(t.Context(), args, &out, &log)
	return strings.ReplaceAll(strings.TrimSpace(log.String()), socket, "SOCKET"), code
}

// internal are words that a user needs not know.
var internal = regexp.MustCompile(`\b(record|generation|journal|godwit: godwit)\b`)

// Each verb names the state that a VM is in, in the same three parts, with a command that leads on. It says no class
// and no word of the inside. docs/reference/errors.md has the texts.
func TestStatesInTheWay(t *testing.T) {
	var rows []string
	for state, rec := range states {
		rec.Vm, rec.Generation = &nodev1.VM{Namespace: "default", Id: "web"}, 7
		socket := refusing(t, &record.HeldError{Call: "open operation op-2", Record: rec})
		var texts []string
		for _, verb := range verbsOnVMs {
			text, code := complains(t, socket, verb)
			if code != 4 {
				t.Errorf("%s of a VM that %s: exit code %d: %s", verb, state, code, text)
			}
			checkText(t, verb+" of a VM that "+state, text)
			texts = append(texts, text)
		}
		if all := slices.Compact(texts); len(all) != 1 {
			t.Errorf("a VM that %s: %q", state, all)
		}
		rows = append(rows, fmt.Sprintf("| %s | %s |", state, texts[0]))
	}
	slices.Sort(rows)
	table := "| web .. | says |\n|---|---|\n" + strings.Join(rows, "\n") + "\n"
	inPage(t, "states", strings.ReplaceAll(table, someDigest, "sha256:0f0f.."))
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
		`"remedy":"To move it: godwit migrate web`, `"details":"open operation op-2: node b owns it at generation 7`} {
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

// A class is taken off the end of a text however often it stands there, and nothing else is.
func TestBare(t *testing.T) {
	for want, err := range map[string]error{
		"a: b":                 fmt.Errorf("a: b: %w", errdefs.ErrNotFound),
		"a":                    fmt.Errorf("godwit: a: %w: %w", errdefs.ErrNotFound, errdefs.ErrUnavailable),
		"web is not found":     errors.New("web is not found"),
		"unavailable":          errdefs.ErrUnavailable,
		"read: no such file":   fmt.Errorf("read: no such file: %w", errdefs.ErrFailedPrecondition),
		"operation o goes on":  fmt.Errorf("operation o goes on: %w", context.Canceled),
		"not found: web, here": errors.New("not found: web, here"),
	} {
		if got := bare(err); got != want {
			t.Errorf("%v: %q, want %q", err, got, want)
		}
	}
}
