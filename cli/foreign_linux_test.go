package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/cli/screen"
	"godwit.dev/godwit/internal/visible"
)

// forged is what a node says to have another line of godwit's own printed.
const forged = "no\n8 2026-11-30T10:00:00Z Succeeded default/web a -> b\ngodwit: VM default/web is lost: run this"

// begins reports the lines that a text of another node has begun.
func begins(text string) (lines []string) {
	for l := range strings.Lines(text) {
		if strings.HasPrefix(l, "8 2026") || strings.HasPrefix(l, "godwit: VM default/web is lost: run this") {
			lines = append(lines, l)
		}
	}
	return lines
}

// What a node, a guest or a registry says stays in the line that it is printed in: it forges no event, note or summary.
func TestForeignTextForgesNoLine(t *testing.T) {
	vm := &nodev1.VM{Namespace: "default", Id: "x"}
	said := func(do func(*options, *cobra.Command) error) func(io.Writer) error {
		return func(w io.Writer) error {
			cmd := &cobra.Command{}
			cmd.SetOut(w)
			cmd.SetErr(w)
			cmd.SetContext(t.Context())
			return do(&options{output: "text", namespace: "default"}, cmd)
		}
	}
	op := func(kind nodev1.Kind) *nodev1.Operation {
		return &nodev1.Operation{Id: "o", Vm: vm, Kind: kind, Phase: nodev1.Phase_PHASE_SUCCEEDED, Note: forged,
			Destination: forged, Mode: forged, Digest: forged}
	}
	figures := &nodev1.Figures{Notes: []string{forged}}
	for name, print := range map[string]func(io.Writer) error{
		"watch": said(func(o *options, cmd *cobra.Command) error {
			return o.tellEvent(cmd, &nodev1.MoveEvent{Id: 7, Type: "Failed", Vm: vm, Reason: forged})
		}),
		"events": func(w io.Writer) error {
			return (&options{}).writeEvent(w, &nodev1.NodeEvent{Event: "move", Vm: vm, Name: forged, Reason: forged})
		},
		"ps": func(w io.Writer) error {
			sayNote(w, &nodev1.VMInfo{Vm: vm, Status: "lost", Note: forged, Unwritten: forged,
				Deletion: &nodev1.Deletion{Id: "d", Tries: 2, Reason: forged}})
			return nil
		},
		"verify": func(w io.Writer) error {
			_ = printVerdict(w, screen.Text, "sha256:1", &nodev1.VerifyResponse{Bad: []*nodev1.BadPart{{Part: forged,
				Reason: forged}}})
			return nil
		},
		"a note": said(func(o *options, cmd *cobra.Command) error { o.note(cmd, forged); return nil }),
		"a wake": func(w io.Writer) error {
			return summary(w, &nodev1.StatusResponse{Operation: op(nodev1.Kind_KIND_WAKE), Settled: true})
		},
		"a checkpoint": func(w io.Writer) error {
			return summary(w, &nodev1.StatusResponse{Operation: op(nodev1.Kind_KIND_CHECKPOINT), Settled: true,
				Figures: figures})
		},
		"a hibernate": func(w io.Writer) error {
			return summary(w, &nodev1.StatusResponse{Operation: op(nodev1.Kind_KIND_HIBERNATE), Settled: true})
		},
		"a move": func(w io.Writer) error {
			return summary(w, &nodev1.StatusResponse{Operation: op(nodev1.Kind_KIND_MIGRATE), Settled: true})
		},
		"a recovery": recoveredText("x", &nodev1.RecoverRequest{}, &nodev1.RecoverResponse{LostNode: forged, Digest: forged}),
		"an error": func(w io.Writer) error {
			(&options{}).printError(w, fmt.Errorf("ask node b: %s: %w", forged, errdefs.ErrAborted))
			return nil
		},
		"an error, verbose": func(w io.Writer) error {
			(&options{verbose: true}).printError(w, fmt.Errorf("ask node b: %s: %w", forged, errdefs.ErrAborted))
			return nil
		},
		"a repair": func(w io.Writer) error {
			r := &repair{does: forged, hand: forged, do: func(context.Context) error { return errors.New(forged) }}
			r.tell(t.Context(), w, true)
			r.tell(t.Context(), w, false)
			left(w, []finding{{Check: "c", Remedy: forged}}, func(string) bool { return false })
			return nil
		},
		"the store": func(w io.Writer) error {
			return printStore(w, &nodev1.StoreState{Waiting: true, Missing: []string{forged},
				Behind: &nodev1.Doubt{Node: forged}}, true)
		},
	} {
		var out bytes.Buffer
		if err := print(visible.Writer(&out)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if got := begins(out.String()); len(got) > 0 {
			t.Errorf("%s: it has begun %q", name, got)
		}
		if !strings.Contains(out.String(), "no") {
			t.Errorf("%s: what was said is not told: %q", name, out.String())
		}
	}
}

// refusing of a drain is a node's word too.
func TestForeignRefusals(t *testing.T) {
	socket := served(t, refuser{}, drains{resp: &nodev1.DrainResponse{Refused: []string{forged}}})
	for _, output := range []string{"text", "json"} {
		var out, errs bytes.Buffer
		if code := Run(t.Context(), []string{"--socket", socket, "-o", output, "drain", "b"}, &out, &errs); code != 5 {
			t.Errorf("exit code %d: %s", code, &errs)
		}
		if got := begins(errs.String()); len(got) > 0 {
			t.Errorf("%s: it has begun %q", output, got)
		}
	}
}

// drains answers each drain the same.
type drains struct {
	nodev1.MovesService
	resp *nodev1.DrainResponse
}

func (d drains) Drain(context.Context, *nodev1.DrainRequest) (*nodev1.DrainResponse, error) {
	return d.resp, nil
}
