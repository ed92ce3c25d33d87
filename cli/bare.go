package cli

import (
	"context"
	"regexp"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
)

// onWire is what gRPC puts before a message.
var onWire = regexp.MustCompile(`rpc error: code = \w+ desc = `)

// ofStep is what an engine puts before the reason of an operation that failed: its step, for --verbose.
var ofStep = regexp.MustCompile(`^[a-z ]+ VM \S+ \(operation [^)]*\): `)

// bare is the text of an error without the classes in it: the exit code and -o json tell those. What it says twice is
// said once.
func bare(err error) string { return plain(err.Error()) }

// plain is bare of a text.
func plain(text string) string {
	text = onWire.ReplaceAllString(strings.TrimPrefix(text, "godwit: "), "")
	text = strings.ReplaceAll(ofStep.ReplaceAllString(text, ""), "\n", "; ")
	var kept []string
	for piece := range strings.SplitSeq(text, ": ") {
		bare, end := unclassed(piece)
		switch {
		case bare == "" && len(kept) > 0:
			kept[len(kept)-1] += end
		case bare != "" && !slices.Contains(kept, bare):
			kept = append(kept, bare)
		}
	}
	if n := len(kept); n > 1 && kept[n-1] == errdefs.ErrPermissionDenied.Error() && toDo.MatchString(kept[n-2]) {
		kept = kept[:n-1] // what to do stands before it
	}
	for len(kept) > 1 && slices.Contains(tellingClasses, kept[len(kept)-1]) {
		kept = kept[:len(kept)-1]
	}
	if len(kept) == 0 {
		return text
	}
	return strings.Join(kept, ": ")
}

// unclassed takes a class off the beginning of a piece between colons; end is what is left then, from the mark after
// the class on.
func unclassed(piece string) (bare, end string) {
	for _, class := range internalClasses {
		rest, cut := strings.CutPrefix(piece, class)
		if cut && (rest == "" || strings.HasPrefix(rest, "; ") || strings.HasPrefix(rest, ". ")) {
			return "", rest
		}
	}
	return piece, ""
}

// internalClasses say nothing to a user. tellingClasses do in the middle of a text; at its end they say again what the
// text has said. That something is not permitted is the system's word too, and stays.
var (
	internalClasses = []string{errdefs.ErrUnavailable.Error(), errdefs.ErrFailedPrecondition.Error(),
		errdefs.ErrInvalidArgument.Error(), errdefs.ErrUnknown.Error(), errdefs.ErrInternal.Error(),
		errdefs.ErrResourceExhausted.Error(), errdefs.ErrDataLoss.Error(), errdefs.ErrNotImplemented.Error(),
		errdefs.ErrUnauthenticated.Error(), errdefs.ErrConflict.Error(), errdefs.ErrAborted.Error(),
		context.Canceled.Error()}
	tellingClasses = []string{errdefs.ErrNotFound.Error(), errdefs.ErrAlreadyExists.Error(),
		context.DeadlineExceeded.Error()}
)
