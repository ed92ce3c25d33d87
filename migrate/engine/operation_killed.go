package engine

import (
	"fmt"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/internal/errno"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// killedTries is how often an operation is tried whose worker is killed each time. With the pauses
// between them the tries take a quarter of a minute at least.
const killedTries = 8

// patience is err, or, of a worker that was killed once too often, an error that does not pass by itself:
// each try reads the whole snapshot, and the next one would end like those before.
func (r *run) patience(node string, op *nodev1.Operation, err error) error {
	if !abortable(op.GetPhase()) || !errno.SaysKilled(err) {
		return err
	}
	if r.killed++; r.killed < killedTries {
		return err
	}
	remedy := "free memory on node " + node
	if op.GetKind() == nodev1.Kind_KIND_WAKE {
		remedy = fmt.Sprintf("snapshot %s owns the VM as before: free memory on node %s, or wake the VM on another one "+
			"(godwit wake --on NODE)", op.GetDigest(), node)
	}
	return &killedError{fmt.Sprintf("its worker was killed %d times, as by the kernel for want of memory: %s: %v",
		r.killed, remedy, err)}
}

// killedError hides the class of the last try's error, which is one that may pass.
type killedError struct{ text string }

func (e *killedError) Error() string { return e.text }

// Unwrap gives the class.
func (*killedError) Unwrap() error { return errdefs.ErrResourceExhausted }
