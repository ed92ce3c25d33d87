package cli

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// daemonSays is a daemon that answers one status after the other.
type daemonSays []*nodev1.StatusResponse

func (t *daemonSays) Status(context.Context, *nodev1.StatusRequest) (*nodev1.StatusResponse, error) {
	if len(*t) == 0 {
		return nil, errors.New("asked after the end")
	}
	next := (*t)[0]
	*t = (*t)[1:]
	return next, nil
}

// sending is a live move in a pass.
func sending(pass uint32, left, dirty uint64, expected float64) *nodev1.StatusResponse {
	return &nodev1.StatusResponse{
		Operation: &nodev1.Operation{Id: "m", Kind: nodev1.Kind_KIND_MIGRATE, Phase: nodev1.Phase_PHASE_TRANSFERRING},
		Step:      "send pages", Done: 5, Total: 10,
		Transfer: &nodev1.Transfer{Pass: pass, LeftBytes: left, DirtyRate: dirty, DowntimeMs: expected},
	}
}

func aMove() (first *nodev1.StatusResponse, rest *daemonSays) {
	op := &nodev1.Operation{Id: "m", Kind: nodev1.Kind_KIND_MIGRATE, Phase: nodev1.Phase_PHASE_SUCCEEDED, Destination: "b",
		Mode: "live", Vm: &nodev1.VM{Namespace: "n", Id: "v"}}
	return sending(0, 0, 0, 0), &daemonSays{
		sending(1, 0, 0, 0), sending(1, 0, 0, 0), sending(2, 3<<20, 5<<20, 24.4),
		{Operation: op, Settled: true, Figures: &nodev1.Figures{DowntimeMs: 30}},
	}
}

// A move is followed to its end: elsewhere than on a terminal by a line for each step and pass. The line has the bytes
// left, the rate of changes and how long it would stand still.
func TestFollowTellsATransfer(t *testing.T) {
	var out, log bytes.Buffer
	cmd := &cobra.Command{}
	cmd.SetOut(&out)
	cmd.SetErr(&log)
	cmd.SetContext(t.Context())
	first, rest := aMove()
	if err := follow(cmd, &options{}, rest, first, false); err != nil {
		t.Fatal(err)
	}
	want := []string{"send pages", "send pages: pass 1",
		"send pages: pass 2, 3MiB left, 5MiB/s dirtied, 24 ms to stand still", ""}
	if got := strings.Split(log.String(), "\n"); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if !strings.Contains(out.String(), "n/v runs on b, live (stood still 30 ms") {
		t.Errorf("%q", &out)
	}
}

// The list of moves shows it where nothing is waited for.
func TestMoveRowTellsATransfer(t *testing.T) {
	m := sending(2, 3<<20, 5<<20, 24.4)
	l := moveList(&nodev1.MovesResponse{Moves: []*nodev1.StatusResponse{m}})
	if note := cell(t, l, "NOTE"); !strings.HasPrefix(note, "pass 2, 3MiB left") || cell(t, l, "DONE") != "50%" {
		t.Errorf("%q", l.Items)
	}
	m.Waiting = "node b is silent"
	l = moveList(&nodev1.MovesResponse{Moves: []*nodev1.StatusResponse{m}})
	if got := cell(t, l, "NOTE"); got != m.Waiting {
		t.Errorf("%q", got)
	}
}
