package operator

import (
	"context"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"

	rootstore "godwit.dev/godwit/migrate/store"
)

// notesRound is after how many rounds notes without a record are looked for: they are few, and cost little.
const notesRound = 60

// SandboxNote is the text of a note of a Sandbox: the name of its record, and its own.
func SandboxNote(id, sandbox string) []byte { return []byte(id + " " + sandbox) }

// endNotes ends the notes of Sandboxes that are gone, whose records were taken away by force. All others end with their
// records.
func (b base) endNotes(ctx context.Context, failed func(error, string, ...any)) {
	all, err := b.records.store.Notes(ctx, KindSandbox, "")
	if err != nil {
		failed(err, "list notes of Sandboxes that are gone")
		return
	}
	for _, note := range all {
		if err := b.endNote(ctx, note); err != nil && ctx.Err() == nil {
			failed(err, "end the note of a Sandbox", "uid", note.Key)
		}
	}
}

// endNote reads anew what the cache does not have. A note of an earlier build does not name the Sandbox, and stays.
func (b base) endNote(ctx context.Context, note rootstore.Note) error {
	id, name, named := strings.Cut(string(note.Value), " ")
	namespace, _, _ := strings.Cut(id, ".")
	if !named {
		return nil
	}
	for _, from := range []View{b.cached, b.current} {
		there, err := from.Get(ctx, types.NamespacedName{Name: id}, &v1alpha1.VMRecord{})
		if err != nil || there {
			return err
		}
	}
	sandbox, err := b.current.Sandbox(ctx, types.NamespacedName{Namespace: namespace, Name: name})
	if err != nil || sandbox != nil && sandbox.UID == note.Key {
		return err
	}
	if err := b.records.store.Note(ctx, KindSandbox, note.Key, nil); err != nil {
		return fmt.Errorf("end it: %w", err)
	}
	return nil
}
