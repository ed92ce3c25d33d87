package cli

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"godwit.dev/godwit/api/moves"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/cli/screen"
)

// movesClient is the daemon's service of moves; the caller closes it.
func (o *options) movesClient() (*moves.Client, error) {
	socket, err := o.daemon()
	if err != nil {
		return nil, err
	}
	return moves.Local(socket), nil
}

// onMoves is the body of a verb that asks for moves.
func (o *options) onMoves(do func(*cobra.Command, *moves.Client, []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		client, err := o.movesClient()
		if err != nil {
			return err
		}
		defer client.Close()
		return do(cmd, client, args)
	}
}

// moving lets follow ask for moves.
type moving struct{ *moves.Client }

func (m moving) Status(ctx context.Context, req *nodev1.StatusRequest) (*nodev1.StatusResponse, error) {
	return m.Get(ctx, req)
}

func newMigrate(opts *options) *cobra.Command {
	request := &nodev1.MigrateRequest{}
	var downtime, timeout time.Duration
	bandwidth, detach, wait := "", false, false
	cmd := &cobra.Command{
		Use:   "migrate VM",
		Short: "Move a running VM to another node",
		Long: "Move a VM while it runs (live), or through the registry (cold). It stays at its node until the\n" +
			"other one has all of it: whatever fails before the commit lets it go on where it is.",
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := opts.vm(args[0]); err != nil {
				return err
			}
			request.DowntimeMs, request.TimeoutMs = milliseconds(downtime), milliseconds(timeout)
			var err error
			if request.Bandwidth, err = parseBandwidth(bandwidth); err != nil {
				return err
			}
			if err := moves.Check(request); err != nil {
				return fmt.Errorf("move VM %s: %w", args[0], err)
			}
			if wait && detach {
				return fmt.Errorf("--wait and --detach: choose one: %w", errdefs.ErrInvalidArgument)
			}
			if request.Operation == "" { // the client repeats a call whose connection breaks
				request.Operation = uuid.NewString()
			}
			if request.Vm, err = opts.resolve(cmd.Context(), args[0]); err != nil {
				return err
			}
			return opts.onMoves(func(cmd *cobra.Command, client *moves.Client, _ []string) error {
				status, err := client.Migrate(cmd.Context(), request)
				if err != nil {
					return err
				}
				return follow(cmd, opts, moving{client}, status, detach)
			})(cmd, args)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&request.To, "to", "", "node that shall have it (default: the one with the most room)")
	flags.StringVar(&request.Mode, "mode", "auto",
		"live, cold (through the registry), or auto: live if that works, else cold")
	flags.DurationVar(&downtime, "downtime", 0,
		"how long the VM may stand still in a live move (default: worker.pause_budget)")
	flags.DurationVar(&timeout, "timeout", 0, "from the start to the commit (default: timeouts.operation)")
	flags.StringVar(&bandwidth, "bandwidth", "", "bytes a second at most, such as 20MiB (default: worker.bandwidth)")
	flags.StringSliceVar(&request.AbortOn, "abort-on", nil,
		"give up if: downtime (it stood still for longer than --downtime), stall (no byte moves for 30s)")
	flags.BoolVar(&request.EndExecs, "end-execs", false,
		"end processes started by exec (exit 137) instead of taking them along")
	flags.StringVar(&request.Stdio, "stdio", "", "log URI of the task there (file:///PATH, binary:///PATH, null://)")
	flags.StringVar(&request.Operation, "operation", "",
		"id of the operation, to repeat the same call safely; with another --to, the move is turned there")
	flags.BoolVar(&wait, "wait", false, "return when it is done (the default)")
	flags.BoolVar(&detach, "detach", false, "return once the operation is durable")
	return cmd
}

// milliseconds rounds away from zero, which stands for a default.
func milliseconds(d time.Duration) int64 {
	ms := d.Milliseconds()
	if rest := d % time.Millisecond; rest > 0 {
		ms++
	} else if rest < 0 {
		ms--
	}
	return ms
}

// moved is the summary of a move that is done, with its timeline.
func moved(w io.Writer, status *nodev1.StatusResponse) error {
	op, f := status.GetOperation(), status.GetFigures()
	if err := tell(w, "%s runs on %s, %s (stood still %.0f ms, %.0f ms in all)\n", fullName(op.GetVm()),
		op.GetDestination(), op.GetMode(), f.GetDowntimeMs(), f.GetTotalMs()); err != nil {
		return err
	}
	if err := timeline(f).Write(w, false); err != nil {
		return err
	}
	if op.GetCleanupPending() {
		_, err := fmt.Fprintln(w, "cleanup is pending: it is tried until it is done")
		return err
	}
	return nil
}

// timeline is where the time of a move went: passes while the VM ran, then the parts of the time that it stood still.
func timeline(f *nodev1.Figures) screen.Table {
	t := screen.Table{Columns: []screen.Column{{Title: "STEP", Keep: true}, {Title: "MS", Right: true},
		{Title: "SENT", Right: true}, {Title: "LEFT", Right: true}, {Title: "VM"}}}
	row := func(step string, ms float64, sent, left uint64, state string) {
		t.Rows = append(t.Rows, []string{step, fmt.Sprintf("%.1f", ms), screen.Bytes(sent), screen.Bytes(left), state})
	}
	for i, p := range f.GetPasses() {
		if i == len(f.GetPasses())-1 && i > 0 {
			break // the last one is a part of the copy
		}
		row(fmt.Sprintf("pass %d", i+1), p.GetMs(), p.GetSentBytes(), p.GetLeftBytes(), "runs at the source")
	}
	row("pause", f.GetStopMs()+f.GetSaveMs(), 0, 0, "stands still")
	last := uint64(0)
	if n := len(f.GetPasses()); n > 1 {
		last = f.GetPasses()[n-1].GetSentBytes()
	}
	row("copy", f.GetCopyMs(), last, 0, "stands still")
	row("vote", f.GetVoteMs(), 0, 0, "stands still")
	row("commit", f.GetCommitMs(), 0, 0, "stands still")
	row("run", f.GetRunMs(), 0, 0, "runs at the destination")
	return t
}

func newMigrations(opts *options) *cobra.Command {
	request, flags := &nodev1.MovesRequest{}, screen.ListFlags{}
	cmd := &cobra.Command{
		Use:   "migrations",
		Short: "List the moves that are under way",
		RunE: opts.onMoves(func(cmd *cobra.Command, client *moves.Client, _ []string) error {
			resp, err := client.List(cmd.Context(), request)
			if err != nil {
				return err
			}
			return opts.list(cmd, moveList(resp), flags)
		}),
	}
	flags.Add(cmd.Flags())
	cmd.Flags().BoolVarP(&request.Closed, "all", "a", false, "also those that are over, as long as they are remembered")
	return cmd
}

func moveList(resp *nodev1.MovesResponse) screen.List {
	l := screen.List{
		Columns: []screen.Column{{Title: "OPERATION", Keep: true}, {Title: "VM", Keep: true}, {Title: "FROM"}, {Title: "TO"},
			{Title: "STATE"}, {Title: "DONE", Right: true}, {Title: "NOTE"}, {Title: "MODE", Wide: true},
			{Title: "AGE", Wide: true},
			{Title: "WHOLE-OPERATION", Wide: true}},
		Whole: func(left []screen.Item) any {
			resp.Moves = screen.Values[*nodev1.StatusResponse](left)
			return resp
		},
	}
	for _, m := range resp.GetMoves() {
		id := m.GetOperation().GetId()
		l.Items = append(l.Items, screen.Item{Value: m, Name: id, ID: id, Row: moveRow(m)})
	}
	return l
}

func moveRow(m *nodev1.StatusResponse) []string {
	op, done, note := m.GetOperation(), "-", m.GetWaiting()
	if note == "" {
		note = transfer(m.GetTransfer())
	}
	if m.GetTotal() > 0 {
		done = fmt.Sprintf("%d%%", min(99, 100*m.GetDone()/m.GetTotal()))
	}
	if m.GetSettled() {
		done, note = "-", op.GetReason()
	}
	if op.GetCleanupPending() {
		note = strings.TrimPrefix(note+", cleanup pending", ", ")
	}
	return []string{
		shortOperation(op.GetId()), fullName(op.GetVm()), op.GetSource(), op.GetDestination(),
		lower(op.GetPhase().String(), "PHASE_"), done, screen.Dash(note), op.GetMode(), screen.Since(op.GetOpenedUnixNano()),
		op.GetId(),
	}
}

func newAbort(opts *options) *cobra.Command {
	request := &nodev1.AbortRequest{}
	cmd := &cobra.Command{
		Use:   "abort OPERATION",
		Short: "Call off a move that is not committed",
		RunE: opts.onMoves(func(cmd *cobra.Command, client *moves.Client, args []string) error {
			var err error
			if request.Operation, err = operationOf(cmd.Context(), client, args[0]); err != nil {
				return err
			}
			status, err := client.Abort(cmd.Context(), request)
			if err != nil {
				return err
			}
			text := said("operation %s: %s", request.GetOperation(), lower(status.GetOperation().GetPhase().String(), "PHASE_"))
			return opts.print(cmd, screen.Result{Value: status, Names: []string{request.GetOperation()}, Text: text})
		}),
	}
	cmd.Flags().StringVar(&request.Reason, "reason", "", "why, for the record")
	return cmd
}
