package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/containerd/errdefs"
	"go.yaml.in/yaml/v3"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/internal/ptytest"
	"godwit.dev/godwit/migrate/controller"
)

// sights is a node that has something of everything to show.
type sights struct{ nodev1.NodeService }

// movesToSee are its moves.
type movesToSee struct{ nodev1.MovesService }

func (sights) VMs(context.Context, *nodev1.VMsRequest) (*nodev1.VMsResponse, error) {
	hour := started.Add(-time.Hour).UnixNano()
	vm := func(id, status, node string) *nodev1.VMInfo {
		return &nodev1.VMInfo{Vm: &nodev1.VM{Namespace: "default", Id: id}, Status: status, Node: node,
			Image: "registry.example/team/web:1.27-alpine-slim", CreatedUnixNano: hour, Owner: &nodev1.Owner{Node: node}}
	}
	drawn := vm(strings.Repeat("0f", 32), "running", "node-1")
	drawn.Name, drawn.Memory, drawn.Resident, drawn.Vcpus = "database-primary", 2<<30, 90<<20, 2
	drawn.Addresses = []string{"10.4.0.2/24", "fd00::2/64"}
	sleeps := vm("web", "hibernated", "node-2")
	sleeps.Owner, sleeps.SleptUnixNano = &nodev1.Owner{Digest: someDigest}, hour
	over := vm("old", "stopped", "node-1")
	return &nodev1.VMsResponse{Vms: []*nodev1.VMInfo{drawn, sleeps, over, vm("far", "owned", "node-3")}}, nil
}

func (sights) Recorded(context.Context, *nodev1.GetRequest) (*nodev1.Record, error) {
	return nil, fmt.Errorf("that VM: %w", errdefs.ErrNotFound)
}

func (sights) Info(context.Context, *nodev1.InfoRequest) (*nodev1.InfoResponse, error) {
	return &nodev1.InfoResponse{Version: "v1"}, nil
}

func (sights) Snapshots(context.Context, *nodev1.SnapshotsRequest) (*nodev1.SnapshotsResponse, error) {
	return &nodev1.SnapshotsResponse{Snapshots: []*nodev1.SnapshotInfo{{Vm: &nodev1.VM{Namespace: "default", Id: "web"},
		Digest: someDigest, Operation: someOperation, CreatedUnixNano: 1e18, Bytes: 300 << 20, Owner: true}}}, nil
}

func (sights) Templates(context.Context, *nodev1.TemplatesRequest) (*nodev1.TemplatesResponse, error) {
	return &nodev1.TemplatesResponse{Templates: []*nodev1.TemplateInfo{{Kind: imageKind, Name: someDigest,
		Image: "registry.example/team/web:1.27-alpine-slim", Vmm: "cloud-hypervisor", Memory: 512 << 20, Vcpus: 2,
		Bytes: 70 << 20, CreatedUnixNano: 1e18, UsedUnixNano: 1e18}}}, nil
}

func (movesToSee) List(context.Context, *nodev1.MovesRequest) (*nodev1.MovesResponse, error) {
	return &nodev1.MovesResponse{Moves: []*nodev1.StatusResponse{{Done: 5, Total: 10,
		Operation: &nodev1.Operation{Id: someOperation, Vm: &nodev1.VM{Namespace: "default", Id: "web"}, Source: "node-1",
			Destination: "node-2", Mode: "live", Phase: nodev1.Phase_PHASE_TRANSFERRING, OpenedUnixNano: 1e18},
		Transfer: &nodev1.Transfer{Pass: 2, LeftBytes: 30 << 20, DirtyRate: 5 << 20, DowntimeMs: 24}}}}, nil
}

func (movesToSee) Nodes(context.Context, *nodev1.NodesRequest) (*nodev1.NodesResponse, error) {
	return &nodev1.NodesResponse{Nodes: []*nodev1.NodeInfo{{Name: "node-1", Address: "node-1.rack-7.example:7412",
		Version: "v0.1.0-123-gabcdef012345-dirty", SeenUnixNano: started.UnixNano(), Up: true, Cordoned: true,
		Controller: true, Vms: 12, RamBytes: 64 << 30, FreeBytes: 33 << 30}}}, nil
}

const someOperation = "8d3ff5ab-0a1b-4c7d-9d5e-2f6a7b8c9d0e"

// daemonOf serves that node, and answers its socket.
func daemonOf(t *testing.T) string {
	t.Helper()
	srv, err := controller.NewServer()
	if err != nil {
		t.Fatal(err)
	}
	nodev1.RegisterNodeService(srv, sights{})
	nodev1.RegisterMovesService(srv, movesToSee{})
	socket := place(t)
	t.Cleanup(serve(t, srv, socket))
	return socket
}

// lists are the verbs that list: the names that are in each, whatever the terminal, and what else is.
var lists = map[string]struct{ names, more []string }{
	"ps":          {[]string{"database-primary", "web", "far"}, []string{"NAME", "asleep", "running", "2GiB", "node-2"}},
	"ps -A":       {[]string{"default/database-primary", "default/web"}, []string{"asleep"}},
	"ps -a":       {[]string{"old"}, []string{"stopped"}},
	"snapshot ls": {[]string{"default/web", someDigest[7:19]}, []string{"300MiB", "owner"}},
	"template ls": {[]string{someDigest[7:19]}, []string{"image"}},
	"migrations":  {[]string{someOperation[:8], "default/web"}, []string{"node-2", "50%"}},
	"nodes":       {[]string{"node-1"}, []string{"up", "12"}},
}

// A table fits a terminal of 60 to 200 columns, with names and digests whole. One of a single column
// shows all names too.
func TestTablesFitTheTerminal(t *testing.T) {
	socket := daemonOf(t)
	for verb, has := range lists {
		for _, columns := range []int{1, 60, 80, 100, 200} {
			t.Run(fmt.Sprintf("%s in %d", verb, columns), func(t *testing.T) {
				term := ptytest.Open(t, columns)
				args := append([]string{"-n", "default", "--socket", socket}, strings.Fields(verb)...)
				if code := Run(t.Context(), args, term.TTY, io.Discard); code != 0 {
					t.Fatalf("exit code %d", code)
				}
				shown := withoutColours(term.Shown())
				for line := range strings.Lines(shown) {
					if n := utf8.RuneCountInString(strings.TrimSpace(line)); columns >= 60 && n > columns {
						t.Errorf("%d columns: %q", n, line)
					}
				}
				want := has.names
				if columns >= 60 {
					want = slices.Concat(want, has.more)
				}
				for _, word := range want {
					if !strings.Contains(shown, word) {
						t.Errorf("no %q in\n%s", word, shown)
					}
				}
			})
		}
	}
}

func withoutColours(s string) string {
	for _, c := range []string{"\x1b[32m", "\x1b[33m", "\x1b[31m", "\x1b[34m", "\x1b[0m"} {
		s = strings.ReplaceAll(s, c, "")
	}
	return s
}

// States have colours on a terminal, unless NO_COLOR or a dumb terminal says otherwise. They have none in a file.
func TestColoursOfTheTerminal(t *testing.T) {
	socket := daemonOf(t)
	for _, env := range []string{"", "NO_COLOR=1", "TERM=dumb"} {
		t.Run(env, func(t *testing.T) {
			t.Setenv("NO_COLOR", "")
			t.Setenv("TERM", "xterm")
			if key, value, found := strings.Cut(env, "="); found {
				t.Setenv(key, value)
			}
			term := ptytest.Open(t, 100)
			Run(t.Context(), []string{"-n", "default", "--socket", socket, "ps"}, term.TTY, io.Discard)
			if got := strings.Contains(term.Shown(), "\x1b[32mrunning"); got != (env == "") {
				t.Errorf("coloured: %v", got)
			}
		})
	}
	if out := printed(t, socket, "ps"); strings.Contains(out, "\x1b") {
		t.Errorf("coloured: %q", out)
	}
}

// printed is what a verb prints into a pipe.
func printed(t *testing.T, socket, line string) string {
	t.Helper()
	var out, log strings.Builder
	args := append([]string{"-n", "default", "--socket", socket}, strings.Fields(line)...)
	if code := Run(t.Context(), args, &out, &log); code != 0 {
		t.Fatalf("godwit %s: exit code %d: %s", line, code, &log)
	}
	return out.String()
}

// Every list has the flags of docker's, and every format of --output.
func TestFormsOfLists(t *testing.T) {
	socket := daemonOf(t)
	for line, want := range map[string]string{
		"ps -q":                                strings.Repeat("0f", 32) + "\nweb\nfar\n",
		"ps -q -A":                             "default/" + strings.Repeat("0f", 32) + "\ndefault/web\ndefault/far\n",
		"ps -qa":                               strings.Repeat("0f", 32) + "\nweb\nold\nfar\n",
		"ps -o name":                           "default/" + strings.Repeat("0f", 32) + "\ndefault/web\ndefault/far\n",
		"ps -q -f id=web":                      "web\n",
		"ps -q --filter name=database-primary": strings.Repeat("0f", 32) + "\n",
		"ps -q --filter state=asleep --filter node=node-2":      "web\n",
		"ps -q --filter status=running --filter image=none":     "",
		"ps --format {{.name}}:{{.state}} -f vcpus=2":           "database-primary:running\n",
		"ps --format {{.memory}} -f vm.id=web":                  "0\n",
		"nodes -q":                                              "node-1\n",
		"snapshot ls -q":                                        someDigest + "\n",
		"snapshot ls --format {{.bytes}}":                       "314572800\n",
		"migrations -q":                                         someOperation + "\n",
		"migrations --format {{.operation.phase}}":              "transferring\n",
		"template ls -q":                                        someDigest + "\n",
		"template ls --format {{.kind}} --filter kind=boot":     "",
		"template ls --format {{.createdTime}}-{{.usedTime}}":   "2001-09-09T01:46:40Z-2001-09-09T01:46:40Z\n",
		"nodes --format {{.name}}={{.freeBytes}} -f state=none": "",
	} {
		if got := printed(t, socket, line); got != want {
			t.Errorf("godwit %s: %q, want %q", line, got, want)
		}
	}
	for line, says := range map[string]string{
		"ps -f nonsense": "KEY=VALUE", "ps -f colour=red": "The keys are: addresses,",
		"ps --format {{.colour}}":    `godwit: --format: there is no key "colour". The keys are: addresses,`,
		"ps --format {{.vm.colour}}": `godwit: --format: there is no key "colour" of vm. The keys of vm are: id, namespace`,
		"ps --format {{.vm.id.x}}":   "godwit: --format: vm.id has no keys below it.",
		"ps --format {{":             "--format",
	} {
		var out, log strings.Builder
		code := Run(t.Context(), append([]string{"--socket", socket}, strings.Fields(line)...), &out, &log)
		if code != 2 || !strings.Contains(log.String(), says) {
			t.Errorf("godwit %s: exit code %d, %s, want %q", line, code, &log, says)
		}
	}
}

// JSON and YAML say the same, keys are camelCase, and numbers are numbers.
func TestDocumentsOfLists(t *testing.T) {
	socket := daemonOf(t)
	for verb := range lists {
		var asJSON, asYAML any
		if err := json.Unmarshal([]byte(printed(t, socket, verb+" -o json")), &asJSON); err != nil {
			t.Fatalf("%s: %v", verb, err)
		}
		if err := yaml.Unmarshal([]byte(printed(t, socket, verb+" -o yaml")), &asYAML); err != nil {
			t.Fatalf("%s: %v", verb, err)
		}
		if a, b := fmt.Sprint(same(asJSON)), fmt.Sprint(same(asYAML)); a != b {
			t.Errorf("%s: json %s\nyaml %s", verb, a, b)
		}
		for key := range everyKey(asJSON) {
			if strings.ContainsAny(key, "_- ") || strings.ToLower(key[:1]) != key[:1] {
				t.Errorf("%s: key %q", verb, key)
			}
		}
	}
	if out := printed(t, socket, "ps -o json"); !strings.Contains(out, `"memory": 2147483648,`) {
		t.Errorf("no number in %s", out)
	}
}

// same brings what both readers make of a document into one form.
func same(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k := range v {
			v[k] = same(v[k])
		}
	case []any:
		for i := range v {
			v[i] = same(v[i])
		}
	case time.Time:
		return v.UTC().Format(time.RFC3339Nano)
	case int:
		return float64(v)
	}
	return v
}

func everyKey(v any) map[string]bool {
	all := map[string]bool{}
	var walk func(any)
	walk = func(v any) {
		switch v := v.(type) {
		case map[string]any:
			for k := range v {
				all[k] = true
				walk(v[k])
			}
		case []any:
			for i := range v {
				walk(v[i])
			}
		}
	}
	walk(v)
	return all
}
