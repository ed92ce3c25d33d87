package cli

import (
	"context"
	"fmt"
	"io"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/cli/screen"
	"godwit.dev/godwit/client"
)

// statuses answers what an operation is at.
type statuses interface {
	Status(ctx context.Context, req *nodev1.StatusRequest) (*nodev1.StatusResponse, error)
}

// follow shows an operation until it is settled and turns its end into output and error.
func follow(cmd *cobra.Command, opts *options, node statuses, status *nodev1.StatusResponse, detach bool) error {
	status, err := await(cmd, opts, node, status, detach)
	if err != nil {
		return err
	}
	return opts.print(cmd, screen.Result{Value: status, Names: []string{fullName(status.GetOperation().GetVm())},
		Text: func(w io.Writer) error { return summary(w, status) }})
}

// await shows an operation until it is settled, and turns its end into an error. The operation belongs to the daemon:
// interrupting await does not end it, and when the daemon is started again both go on. It answers how far the
// operation is, also with an error.
func await(cmd *cobra.Command, opts *options, node statuses, status *nodev1.StatusResponse,
	detach bool) (*nodev1.StatusResponse, error) {
	ctx, id := cmd.Context(), status.GetOperation().GetId()
	if !detach {
		shown := newProgress(cmd.ErrOrStderr(), opts.machine())
		patience := opts.waitForDaemon(cmd, shown.finish)
		settled, err := patience.Settle(ctx, status, node.Status, shown.update)
		shown.finish()
		switch {
		case ctx.Err() != nil && err != nil:
			return status, goesOn(id, ctx.Err())
		case err != nil:
			return status, fmt.Errorf("follow operation %s: %w", id, err)
		}
		status = settled
		opts.trace(cmd, id, outcome(status))
	}
	return status, outcome(status)
}

// goesOn is what a client says that was told to stop.
func goesOn(operation string, cause error) error {
	return &client.Problem{What: "Interrupted.", Why: fmt.Sprintf("Operation %s goes on in godwitd.", operation),
		Remedy: "To see how far it is: godwit ps.", Cause: cause}
}

// outcome is nil for success and for an operation that is under way.
func outcome(status *nodev1.StatusResponse) error {
	op := status.GetOperation()
	if !status.GetSettled() || op.GetPhase() == nodev1.Phase_PHASE_SUCCEEDED {
		return nil
	}
	class := record.ClassOf(op.GetClass())
	if class == nil || lost(op.GetPhase()) {
		class = errdefs.ErrAborted
	}
	how := "has failed"
	if op.GetPhase() == nodev1.Phase_PHASE_ABORTED {
		how = "was given up"
	}
	stays, next := after(op)
	why := parts(capital(sentence(plain(op.GetReason()))), nil)
	if class == context.DeadlineExceeded && op.GetReason() != "" && plain(op.GetReason()) == class.Error() {
		why = &client.Problem{What: "It has taken longer than it may.",
			Remedy: "To give it longer: timeouts.operation in the configuration, or --timeout of a move."}
	}
	return &client.Problem{What: fmt.Sprintf("The %s of %s %s. %s", noun(op.GetKind()), fullName(op.GetVm()), how, stays),
		Why: why.What + " " + why.Why, Remedy: why.Remedy + " " + next,
		Cause: fmt.Errorf("operation %s %s: %s: %w", op.GetId(), lower(op.GetPhase().String(), "PHASE_"), op.GetReason(),
			class)}
}

// noun is what an operation of a kind is called.
func noun(kind nodev1.Kind) string {
	if kind == nodev1.Kind_KIND_MIGRATE {
		return "move"
	}
	return lower(kind.String(), "KIND_")
}

// after says where an operation that was undone has left the VM, and what to do from there.
func after(op *nodev1.Operation) (stays, next string) {
	switch {
	case lost(op.GetPhase()):
		return "The VM has ended, and its last snapshot is kept.",
			fmt.Sprintf("To see its snapshots: godwit snapshot ls %s.", fullName(op.GetVm()))
	case op.GetKind() != nodev1.Kind_KIND_WAKE:
		return "The VM stays at node " + op.GetSource() + " as before.", ""
	default:
		return "The VM sleeps as before.", fmt.Sprintf("To try again: godwit wake %s.", fullName(op.GetVm()))
	}
}

func lost(p nodev1.Phase) bool {
	return p == nodev1.Phase_PHASE_LOST_AT_DEST || p == nodev1.Phase_PHASE_LOST_AT_SRC
}

func summary(w io.Writer, status *nodev1.StatusResponse) error {
	op, f := status.GetOperation(), status.GetFigures()
	vm := op.GetVm().GetNamespace() + "/" + op.GetVm().GetId()
	if !status.GetSettled() {
		return tell(w, "%s: %s started, operation %s\n", vm, lower(op.GetKind().String(), "KIND_"), op.GetId())
	}
	if op.GetKind() == nodev1.Kind_KIND_HIBERNATE {
		return tell(w, "%s sleeps as %s\n(pushed %s of %s resident, paused %.0f ms, durable after %.0f ms)\n",
			vm, op.GetDigest(), screen.Bytes(f.GetPushedBytes()), screen.Bytes(f.GetResidentBytes()), f.GetPauseMs(),
			f.GetDurableMs())
	}
	if op.GetKind() == nodev1.Kind_KIND_CHECKPOINT {
		if err := tell(w, "%s goes on (pushed %s of %s resident, paused %.0f ms, durable after %.0f ms)\ncheckpoint %s\n", vm,
			screen.Bytes(f.GetPushedBytes()), screen.Bytes(f.GetResidentBytes()), f.GetPauseMs(), f.GetDurableMs(),
			op.GetDigest()); err != nil {
			return err
		}
		return inPause(w, f)
	}
	if op.GetKind() == nodev1.Kind_KIND_MIGRATE {
		return moved(w, status)
	}
	err := tell(w, "%s runs on %s (%.0f ms)\n", vm, op.GetDestination(), f.GetWakeMs())
	if err != nil || op.GetNote() == "" {
		return err
	}
	return tell(w, "godwit: %s\n", op.GetNote())
}

// inPause says what took part of a checkpoint's pause that could have been outside of it.
func inPause(w io.Writer, f *nodev1.Figures) error {
	if n := f.GetInsideBytes(); n > 0 {
		if err := tell(w, "%s were sent in the pause: worker.memory did not hold them\n", screen.Bytes(n)); err != nil {
			return err
		}
	}
	for _, n := range f.GetNotes() {
		if err := tell(w, "%s\n", n); err != nil {
			return err
		}
	}
	return nil
}

// progress is how far an operation is; a program that reads the result gets none.
type progress struct{ bar *screen.Bar }

func newProgress(out io.Writer, mute bool) *progress {
	if mute {
		return &progress{}
	}
	return &progress{bar: screen.NewBar(out)}
}

func (p *progress) update(status *nodev1.StatusResponse) {
	if p.bar == nil {
		return
	}
	step := status.GetStep()
	if w := status.GetWaiting(); w != "" {
		step += " (waiting: " + w + ")"
	}
	p.bar.Show(step, status.GetDone(), status.GetTotal(), transfer(status.GetTransfer()))
}

// transfer says how far a live move has come: what is left and how fast that grows is known
// from the second pass on.
func transfer(t *nodev1.Transfer) string {
	if t.GetPass() == 0 {
		return ""
	}
	text := fmt.Sprintf("pass %d", t.GetPass())
	if t.GetDowntimeMs() > 0 {
		text += fmt.Sprintf(", %s left, %s/s dirtied, %.0f ms to stand still", screen.Bytes(t.GetLeftBytes()),
			screen.Bytes(t.GetDirtyRate()),
			t.GetDowntimeMs())
	}
	return text
}

// finish ends the bar; what comes after it has one of its own.
func (p *progress) finish() {
	if p.bar != nil {
		p.bar.Finish()
	}
}
