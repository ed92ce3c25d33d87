package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/moves"
	nodev1 "godwit.dev/godwit/api/node/v1"
)

// shownOperation is how many characters of an operation's id a table has.
const shownOperation = 8

func shortOperation(id string) string { return id[:min(len(id), shownOperation)] }

// operationOf answers the id of the move that a word names: the id, or the beginning of the id of one move.
func operationOf(ctx context.Context, client *moves.Client, word string) (string, error) {
	_, err := client.Get(ctx, &nodev1.StatusRequest{Operation: word})
	if !errdefs.IsNotFound(err) {
		return word, err
	}
	all, listed := client.List(ctx, &nodev1.MovesRequest{Closed: true})
	if listed != nil {
		return "", listed
	}
	var found []string
	for _, m := range all.GetMoves() {
		if id := m.GetOperation().GetId(); strings.HasPrefix(id, word) {
			found = append(found, id)
		}
	}
	switch len(found) {
	case 0:
		return "", err
	case 1:
		return found[0], nil
	}
	return "", fmt.Errorf("operation %q is the beginning of several: %s. Write more of it: %w", word,
		strings.Join(found, ", "), errdefs.ErrInvalidArgument)
}
