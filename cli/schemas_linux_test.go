package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"godwit.dev/godwit/api/version"
	"godwit.dev/godwit/cli/screen"
	"godwit.dev/godwit/client"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// schemas are the documents of verbs. A verb that is in no line has none: it passes streams on, or prints what it was
// given.
var schemas = map[string]struct {
	of    any
	verbs []string
}{
	"vms": {&nodev1.VMsResponse{}, []string{"ps"}},
	"vm": {&nodev1.VM{}, []string{"run", "create", "start", "stop", "restart",
		"kill", "rename"}},
	"done":         {doneDocument{}, []string{"start", "stop", "restart", "kill"}},
	"images":       {imagesDocument{}, []string{"images"}},
	"inspections":  {[]inspectionDocument{}, []string{"inspect"}},
	"processes":    {processesDocument{}, []string{"top"}},
	"stats":        {statsDocument{}, []string{"stats"}},
	"files":        {client.Copied{}, []string{"cp"}},
	"image":        {imageDocument{}, []string{"pull", "commit"}},
	"changes":      {changesDocument{}, []string{"diff"}},
	"ports":        {portsDocument{}, []string{"port"}},
	"operation":    {&nodev1.StatusResponse{}, []string{"hibernate", "wake", "checkpoint", "migrate", "abort"}},
	"drained":      {&nodev1.DrainResponse{}, []string{"drain"}},
	"schedule":     {&nodev1.Schedule{}, []string{"checkpoint --every", "checkpoint --stop"}},
	"migrations":   {&nodev1.MovesResponse{}, []string{"migrations"}},
	"event":        {&nodev1.MoveEvent{}, []string{"watch"}},
	"node-event":   {&nodev1.NodeEvent{}, []string{"events"}},
	"nodes":        {&nodev1.NodesResponse{}, []string{"nodes"}},
	"node":         {&nodev1.CordonResponse{}, []string{"cordon", "uncordon"}},
	"removed":      {&nodev1.ForgetResponse{}, []string{"rm"}},
	"record":       {&nodev1.Record{}, []string{"rm --final-snapshot", "rm --cancel"}},
	"recovered":    {&nodev1.RecoverResponse{}, []string{"recover"}},
	"snapshots":    {&nodev1.SnapshotsResponse{}, []string{"snapshot ls", "snapshot history"}},
	"verified":     {&nodev1.VerifyResponse{}, []string{"snapshot verify"}},
	"difference":   {&nodev1.DiffResponse{}, []string{"snapshot diff"}},
	"dropped":      {&nodev1.DropResponse{}, []string{"snapshot rm"}},
	"pruned":       {&nodev1.PruneResponse{}, []string{"snapshot prune"}},
	"copied":       {&nodev1.CopyResponse{}, []string{"snapshot copy"}},
	"pinned":       {&nodev1.SnapshotRef{}, []string{"snapshot pin", "snapshot unpin"}},
	"templates":    {&nodev1.TemplatesResponse{}, []string{"template ls"}},
	"template":     {&nodev1.TemplateMakeResponse{}, []string{"template make"}},
	"template-rm":  {&nodev1.TemplateRemoveResponse{}, []string{"template rm"}},
	"template-put": {&nodev1.TemplatePushResponse{}, []string{"template push"}},
	"store":        {&nodev1.StoreState{}, []string{"controller status", "controller restore", "controller retire"}},
	"checks":       {[]finding{}, []string{"doctor"}},
	"version":      {version.Document{}, []string{"version"}},
	"error":        {errorDocument{}, nil},
	"own-node":     {nodeDocument{}, []string{"node init", "node join"}},
	"token":        {tokenDocument{}, []string{"node token"}},
	"dashboard":    {dashboardDocument{}, []string{"dashboard"}},
}

// Each document has its schema in docs/reference/schemas, and the page there names the verbs.
func TestSchemasInThePage(t *testing.T) {
	const dir = "../docs/reference/schemas"
	page := "# JSON schemas\n\nWhat `-o json` and `-o yaml` print, as JSON Schema of draft 2020-12. " +
		"`go test ./cli -run Schemas -update` makes these files.\n\n| schema | printed by |\n|---|---|\n"
	root := newRoot(&options{})
	for _, name := range sorted(schemas) {
		s := schemas[name]
		data, err := json.MarshalIndent(screen.Schema(name, s.of), "", " ")
		if err != nil {
			t.Fatal(err)
		}
		sameFile(t, filepath.Join(dir, name+".json"), append(data, '\n'))
		var verbs []string
		for _, verb := range s.verbs {
			if cmd, _, err := root.Find(strings.Fields(strings.Split(verb, " --")[0])); err != nil || cmd == root {
				t.Errorf("%s: no verb %s", name, verb)
			}
			verbs = append(verbs, "`godwit "+verb+"`")
		}
		if len(verbs) == 0 {
			verbs = []string{"every verb that fails, on standard error"}
		}
		page += fmt.Sprintf("| [%s](%s.json) | %s |\n", name, name, strings.Join(verbs, ", "))
	}
	sameFile(t, filepath.Join(dir, "README.md"), []byte(page))
}

func sorted[V any](m map[string]V) (names []string) {
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func sameFile(t *testing.T, path string, want []byte) {
	t.Helper()
	if is, err := os.ReadFile(path); err == nil && bytes.Equal(is, want) {
		return
	}
	if !*update {
		t.Errorf("%s is not as it was made: go test ./cli -run Schemas -update", path)
		return
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, want, 0o644); err != nil {
		t.Fatal(err)
	}
}

// What verbs print fits their schemas, with no key beyond them.
func TestDocumentsFitSchemas(t *testing.T) {
	socket := daemonOf(t)
	for name, s := range schemas {
		for _, verb := range s.verbs {
			if _, listed := lists[verb]; !listed && verb != "version" && verb != "doctor" {
				continue
			}
			var out, log strings.Builder
			Run(t.Context(), append([]string{"-o", "json", "--socket", socket}, strings.Fields(verb)...), &out, &log)
			checkAgainst(t, name, out.String(), s.of)
		}
	}
	var out, log strings.Builder
	Run(t.Context(), []string{"-o", "json", "ps", "extra"}, &out, &log)
	checkAgainst(t, "error", log.String(), errorDocument{})
}

func checkAgainst(t *testing.T, name, text string, of any) {
	t.Helper()
	var doc, schema any
	data, err := json.Marshal(screen.Schema(name, of))
	if err == nil {
		err = json.Unmarshal(data, &schema)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(text), &doc); err != nil {
		t.Fatalf("%s: %v: %s", name, err, text)
	}
	if wrong := misfits(name, doc, schema.(map[string]any)); wrong != "" {
		t.Errorf("%s: %s", name, wrong)
	}
}

// misfits says where a document is not as its schema has it. It knows the words that Schema writes.
func misfits(at string, v any, s map[string]any) string {
	if one, ok := s["oneOf"].([]any); ok {
		wrong := ""
		for _, o := range one {
			if wrong = misfits(at, v, o.(map[string]any)); wrong == "" {
				return ""
			}
		}
		return wrong
	}
	if !fitsType(v, s["type"]) {
		return fmt.Sprintf("%s is %T, not %v", at, v, s["type"])
	}
	switch v := v.(type) {
	case []any:
		for i, item := range v {
			if wrong := misfits(fmt.Sprintf("%s[%d]", at, i), item, s["items"].(map[string]any)); wrong != "" {
				return wrong
			}
		}
	case map[string]any:
		return misfitsObject(at, v, s)
	}
	return ""
}

func misfitsObject(at string, v, s map[string]any) string {
	known, _ := s["properties"].(map[string]any)
	required, _ := s["required"].([]any)
	for _, name := range required {
		if _, found := v[name.(string)]; !found {
			return fmt.Sprintf("%s has no %v", at, name)
		}
	}
	for name, value := range v {
		below, found := known[name].(map[string]any)
		if !found {
			if below, found = s["additionalProperties"].(map[string]any); !found {
				return fmt.Sprintf("%s.%s is in no schema", at, name)
			}
		}
		if wrong := misfits(at+"."+name, value, below); wrong != "" {
			return wrong
		}
	}
	return ""
}

func fitsType(v, wanted any) bool {
	names, several := wanted.([]any)
	if !several {
		names = []any{wanted}
	}
	for _, name := range names {
		switch v := v.(type) {
		case nil:
			if name == "null" {
				return true
			}
		case string:
			if name == "string" {
				return true
			}
		case bool:
			if name == "boolean" {
				return true
			}
		case float64:
			if name == "number" || name == "integer" && v == math.Trunc(v) {
				return true
			}
		case []any:
			if name == "array" {
				return true
			}
		case map[string]any:
			if name == "object" {
				return true
			}
		}
	}
	return wanted == nil
}

// A verb that prints a document has a schema: only these have none.
func TestVerbsHaveSchemas(t *testing.T) {
	without := []string{"golden", "golden ls", "golden rm", "snapshot inspect", "exec", "logs", "attach",
		"oci-hook", "docs"}
	var covered []string
	for _, s := range schemas {
		covered = append(covered, s.verbs...)
	}
	eachVerb(newRoot(&options{}), func(cmd *cobra.Command) {
		path := strings.TrimPrefix(cmd.CommandPath(), "godwit ")
		if cmd.Hidden || cmd.HasSubCommands() || strings.HasPrefix(path, "completion") || slices.Contains(covered, path) ||
			slices.Contains(without, path) {
			return
		}
		t.Errorf("godwit %s has no schema", path)
	})
}
