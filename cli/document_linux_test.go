package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"go.yaml.in/yaml/v3"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/record"
)

// ordered is a controller whose orders have led to what it says.
type ordered struct {
	nodev1.MovesService
	drains  []*nodev1.DrainResponse // one answer after the other
	recover *nodev1.RecoverResponse
	settled *nodev1.StatusResponse
}

func (o *ordered) Drain(context.Context, *nodev1.DrainRequest) (*nodev1.DrainResponse, error) {
	now := o.drains[0]
	if len(o.drains) > 1 {
		o.drains = o.drains[1:]
	}
	return now, nil
}

func (o *ordered) Recover(context.Context, *nodev1.RecoverRequest) (*nodev1.RecoverResponse, error) {
	return o.recover, nil
}

func (o *ordered) Get(context.Context, *nodev1.StatusRequest) (*nodev1.StatusResponse, error) {
	return o.settled, nil
}

// one reads a text as one document of JSON or YAML: a program has no other.
func one(t *testing.T, format, text string) (doc map[string]any) {
	t.Helper()
	if format == "json" {
		if err := json.Unmarshal([]byte(text), &doc); err != nil {
			t.Errorf("%q: %v", text, err)
		}
		return doc
	}
	d := yaml.NewDecoder(strings.NewReader(text))
	if err := d.Decode(&doc); err != nil {
		t.Errorf("%q: %v", text, err)
	}
	if err := d.Decode(new(any)); !errors.Is(err, io.EOF) {
		t.Errorf("%q has a second document: %v", text, err)
	}
	return doc
}

func settled(id string, phase nodev1.Phase) *nodev1.StatusResponse {
	return &nodev1.StatusResponse{Settled: true, Operation: &nodev1.Operation{Id: "o-" + id, Phase: phase, Source: "a",
		Destination: "b", Kind: nodev1.Kind_KIND_MIGRATE, Vm: &nodev1.VM{Namespace: "default", Id: id}}}
}

// A verb on several VMs writes one document that has them all, also of those that are left when one fails. Of one VM
// it is that VM.
func TestSeveralVMsAreOneDocument(t *testing.T) {
	socket, ctr := served(t, refuser{rec: &nodev1.Record{}}, movesRefused{}), containerdWith(t, "a", "b")
	for _, format := range []string{"json", "yaml"} {
		run := func(code int, args string) string {
			var out, errs bytes.Buffer
			if got := Run(t.Context(), append([]string{"--socket", socket, "--containerd", ctr, "-n", "default", "-o", format},
				strings.Fields(args)...), &out, &errs); got != code {
				t.Errorf("%s: exit code %d, want %d: %s", args, got, code, &errs)
			}
			return out.String()
		}
		vms, _ := one(t, format, run(0, "stop a b"))["vms"].([]any)
		if len(vms) != 2 || vms[0].(map[string]any)["id"] != "a" || vms[1].(map[string]any)["id"] != "b" {
			t.Errorf("%s: %v", format, vms)
		}
		if vms, _ := one(t, format, run(3, "stop a nothere b"))["vms"].([]any); len(vms) != 2 {
			t.Errorf("%s, where one fails: %v", format, vms)
		}
		if doc := one(t, format, run(0, "stop a")); doc["id"] != "a" || doc["namespace"] != "default" {
			t.Errorf("%s, of one: %v", format, doc)
		}
		if out := run(3, "stop nothere"); out != "" {
			t.Errorf("%s, of none: %q", format, out)
		}
	}
}

// A drain writes one document at its end: of all moves, also of none, and of those that failed.
func TestDrainIsOneDocument(t *testing.T) {
	for name, c := range map[string]struct {
		answers []*nodev1.DrainResponse
		code    int
		moves   int
	}{
		"an empty node": {[]*nodev1.DrainResponse{{}}, 0, 0},
		"two moves": {[]*nodev1.DrainResponse{{Moves: []*nodev1.StatusResponse{settled("x", nodev1.Phase_PHASE_SUCCEEDED),
			settled("y", nodev1.Phase_PHASE_SUCCEEDED)}}, {}}, 0, 2},
		"one that fails, and one refused": {[]*nodev1.DrainResponse{{Refused: []string{"default/z: no room"},
			Moves: []*nodev1.StatusResponse{settled("x", nodev1.Phase_PHASE_FAILED)}}}, 5, 1},
	} {
		for _, format := range []string{"json", "yaml"} {
			socket := served(t, refuser{}, &ordered{drains: c.answers})
			var out, errs bytes.Buffer
			if got := Run(t.Context(), []string{"--socket", socket, "-o", format, "drain", "a"}, &out, &errs); got != c.code {
				t.Errorf("%s: exit code %d: %s", name, got, &errs)
			}
			doc := one(t, format, out.String())
			moves, _ := doc["moves"].([]any)
			if refused, ok := doc["refused"].([]any); len(moves) != c.moves || !ok || len(refused) != c.code/5 {
				t.Errorf("%s: %s: %v", name, format, doc)
			}
		}
	}
}

// Recover waits for its wake in every form of output, and ends as it does.
func TestRecoverWaits(t *testing.T) {
	open := &nodev1.StatusResponse{Operation: &nodev1.Operation{Id: "w", Kind: nodev1.Kind_KIND_WAKE,
		Vm: &nodev1.VM{Namespace: "default", Id: "web"}}}
	failed := settled("web", nodev1.Phase_PHASE_FAILED)
	failed.Operation.Kind, failed.Operation.Class = nodev1.Kind_KIND_WAKE, record.Class(errdefs.ErrDataLoss)
	woken := settled("web", nodev1.Phase_PHASE_SUCCEEDED)
	woken.Operation.Kind = nodev1.Kind_KIND_WAKE
	for format, phase := range map[string]string{"json": "phase", "yaml": "phase", "text": "", "name": ""} {
		for _, c := range []struct {
			end   *nodev1.StatusResponse
			flag  string
			code  int
			phase string
		}{{failed, "--fenced", 9, "failed"}, {woken, "--fenced", 0, "succeeded"}, {failed, "--detach", 0, "new"}} {
			socket := served(t, refuser{rec: &nodev1.Record{}}, &ordered{settled: c.end,
				recover: &nodev1.RecoverResponse{LostNode: "a", Digest: "sha256:1", Wake: open}})
			var out, errs bytes.Buffer
			if got := Run(t.Context(), []string{"--socket", socket, "--containerd", containerdWith(t), "-n", "default", "-o",
				format, "recover", "web", "--to", "b", "--fenced", c.flag}, &out, &errs); got != c.code {
				t.Errorf("%s %s: exit code %d, want %d: %s%s", format, c.flag, got, c.code, &out, &errs)
			}
			if phase == "" {
				continue
			}
			wake, _ := one(t, format, out.String())["wake"].(map[string]any)
			if op, _ := wake["operation"].(map[string]any); op == nil || c.flag != "--detach" && op[phase] != c.phase {
				t.Errorf("%s %s: %s", format, c.flag, &out)
			}
		}
	}
}

// What drain, cp and a repair tell in addition is a document each, where a program reads.
func TestNotesAreDocuments(t *testing.T) {
	socket := served(t, refuser{}, &ordered{drains: []*nodev1.DrainResponse{{Refused: []string{"default/z: no room"}}}})
	var out, errs bytes.Buffer
	Run(t.Context(), []string{"--socket", socket, "-o", "json", "drain", "a"}, &out, &errs)
	for l := range strings.Lines(errs.String()) {
		if err := json.Unmarshal([]byte(l), new(map[string]any)); err != nil {
			t.Errorf("%q: %v", l, err)
		}
	}
	if !strings.Contains(errs.String(), `{"note":"default/z: no room"}`) {
		t.Errorf("%s", &errs)
	}
}
