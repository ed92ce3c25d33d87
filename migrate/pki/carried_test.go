package pki_test

import (
	"os"
	"path/filepath"
	"testing"

	"godwit.dev/godwit/internal/durable"
	"godwit.dev/godwit/migrate/pki"
)

// granted asks ca for a certificate of node a, and puts it into dir.
func granted(t *testing.T, ca *pki.Authority, dir string) error {
	t.Helper()
	wish, err := pki.NewWish("a")
	if err != nil {
		t.Fatal(err)
	}
	chain, err := ca.Sign(wish.Request, "a")
	if err != nil {
		t.Fatal(err)
	}
	return wish.Grant(dir, chain)
}

// A renewal that fails, or is killed, at any of its files leaves the node with a certificate. So does the next one,
// which begins with those files.
func TestHalfARenewal(t *testing.T) {
	ca, err := pki.NewAuthority()
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"node.key.next", "ca.crt", "node.crt"} {
		dir := t.TempDir()
		if err := granted(t, ca, dir); err != nil {
			t.Fatal(err)
		}
		blocked := durable.Unfinished(filepath.Join(dir, file))
		if err := os.Mkdir(blocked, 0o700); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := granted(t, ca, dir); err == nil {
				t.Errorf("%s cannot be written, and the renewal says nothing", file)
			}
			if _, err := pki.LoadOf("a", pki.In(dir)); err != nil {
				t.Errorf("a renewal that could not write %s: %v", file, err)
			}
		}
		if err := os.Remove(blocked); err != nil {
			t.Fatal(err)
		}
		if err := granted(t, ca, dir); err != nil {
			t.Errorf("after a renewal that could not write %s: %v", file, err)
		}
	}
}

// Killed before the key has its place, the certificate loads with the key that waits. The next renewal begins there.
func TestRenewalBeforeItsLastStep(t *testing.T) {
	ca, err := pki.NewAuthority()
	if err != nil {
		t.Fatal(err)
	}
	dir, old := t.TempDir(), t.TempDir()
	for _, d := range []string{old, dir} {
		if err := granted(t, ca, d); err != nil {
			t.Fatal(err)
		}
	}
	files := pki.In(dir)
	key, err := os.ReadFile(pki.In(old).Key)
	if err == nil {
		err = os.Rename(files.Key, files.Key+".next")
	}
	if err == nil {
		err = os.WriteFile(files.Key, key, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := pki.LoadOf("a", files); err != nil {
		t.Error(err)
	}
	if err := os.Mkdir(durable.Unfinished(files.Cert), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := granted(t, ca, dir); err == nil {
		t.Error("the certificate cannot be written, and the renewal says nothing")
	}
	if _, err := pki.LoadOf("a", files); err != nil {
		t.Errorf("the next renewal failed: %v", err)
	}
}

// A certificate is of the CA that has signed it, and of no other one of the same name.
func TestIssuedBy(t *testing.T) {
	ca, err := pki.NewAuthority()
	if err != nil {
		t.Fatal(err)
	}
	other, err := pki.NewAuthority()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := granted(t, ca, dir); err != nil {
		t.Fatal(err)
	}
	id, err := pki.LoadOf("a", pki.In(dir))
	if err != nil {
		t.Fatal(err)
	}
	for a, want := range map[*pki.Authority]bool{ca: true, other: false} {
		cert, _, err := a.PEM()
		if err != nil {
			t.Fatal(err)
		}
		if got, err := id.IssuedBy(cert); err != nil || got != want {
			t.Errorf("issued by a CA: %v, want %v: %v", got, want, err)
		}
	}
	if _, err := id.IssuedBy([]byte("no PEM")); err == nil {
		t.Error("no CA at all has issued it or not")
	}
}
