package snapshot

import (
	"errors"
	"path/filepath"
	"testing"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/snapshot/store"
	"godwit.dev/godwit/snapshot/store/storetest"
)

// A snapshot of another VM is not deleted, whatever a pending deletion says of its digest and its tag. Nor is a
// golden one deleted for a VM, nor a VM's as a golden one. Nothing of it changes.
func TestDropOfAnother(t *testing.T) {
	for name, st := range map[string]store.Store{
		"registry": opened(t, storetest.Start(t, &storetest.Registry{})),
		"layout":   layout(t, filepath.Join(t.TempDir(), "l")),
	} {
		w := newWorld(t, 1)
		victim, err := Push(t.Context(), st, w.src, w.opts)
		if err != nil {
			t.Fatal(err)
		}
		for what, drop := range map[string]func() error{
			"by digest": func() error { return Drop(t.Context(), st, victim.Digest, "", "rogue") },
			"by tag":    func() error { return Drop(t.Context(), st, victim.Digest, victim.Tag, "rogue") },
			"of no VM":  func() error { return Drop(t.Context(), st, victim.Digest, victim.Tag, "") },
			"as golden": func() error { return DropGolden(t.Context(), st, victim.Digest, victim.Tag) },
		} {
			if err := drop(); !errors.As(err, new(*ForeignError)) || !errdefs.IsFailedPrecondition(err) {
				t.Errorf("%s, %s: %v", name, what, err)
			}
			if there, err := Exists(t.Context(), st, victim.Digest); !there || err != nil {
				t.Fatalf("%s, %s: it is gone (%v)", name, what, err)
			}
			if info, err := st.Stat(t.Context(), store.Manifest(victim.Tag)); err != nil || info.Digest != victim.Digest {
				t.Fatalf("%s, %s: its tag is gone (%v)", name, what, err)
			}
		}
	}
}

// While the manifest cannot be read it is not known whose it is: nothing is deleted, and the error is no word that
// it was another's.
func TestDropThatCannotRead(t *testing.T) {
	w := newWorld(t, 1)
	receipt, err := Push(t.Context(), w.st, w.src, w.opts)
	if err != nil {
		t.Fatal(err)
	}
	for _, class := range []error{errdefs.ErrUnavailable, errdefs.ErrDataLoss, errdefs.ErrUnauthenticated} {
		err := Drop(t.Context(), &faulty{Store: w.st, fail: 1, err: class}, receipt.Digest, receipt.Tag, "uid1")
		if !errors.Is(err, class) || errors.As(err, new(*ForeignError)) {
			t.Errorf("%v: %v", class, err)
		}
		if there, err := Exists(t.Context(), w.st, receipt.Digest); !there || err != nil {
			t.Fatalf("%v: it is gone (%v)", class, err)
		}
	}
}

// Another snapshot under the tag of a signature stays when the signed one goes.
func TestSignatureThatIsASnapshot(t *testing.T) {
	w := newWorld(t, 1)
	kept, err := Push(t.Context(), w.st, w.src, w.opts)
	if err != nil {
		t.Fatal(err)
	}
	w.opts.Ref.Attempt++
	gone, err := Push(t.Context(), w.st, w.src, w.opts)
	if err != nil {
		t.Fatal(err)
	}
	data, err := store.Read(t.Context(), w.st, store.Manifest(kept.Digest.String()), maxManifest)
	if err != nil {
		t.Fatal(err)
	}
	c := store.Bytes(data, kept.Digest)
	c.MediaType = "application/vnd.oci.image.manifest.v1+json"
	if err := w.st.Put(t.Context(), store.Manifest(SignatureTag(gone.Digest)), c); err != nil {
		t.Fatal(err)
	}
	if err := Drop(t.Context(), w.st, gone.Digest, gone.Tag, "uid1"); err != nil {
		t.Fatal(err)
	}
	if there, err := Exists(t.Context(), w.st, kept.Digest); !there || err != nil {
		t.Errorf("it went as a signature (%v)", err)
	}
}
