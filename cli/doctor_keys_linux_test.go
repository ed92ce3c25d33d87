package cli

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A key that is a link, or has a second name, may be the file of another program: its mode stays, and the user is told
// what to do by hand.
func TestKeyOfAnotherProgramKeepsItsMode(t *testing.T) {
	for how, link := range map[string]func(target, key string) error{
		"a symbolic link": os.Symlink,
		"a hard link":     os.Link,
		"a link to its directory": func(target, key string) error {
			return errors.Join(os.Remove(filepath.Dir(key)), os.Symlink(filepath.Dir(target), filepath.Dir(key)))
		},
	} {
		t.Run(how, func(t *testing.T) {
			h, _ := aHost(t)
			target, key := filepath.Join(t.TempDir(), "ca.key"), filepath.Join(h.cfg.PKIDir(), "ca.key")
			if err := errors.Join(os.WriteFile(target, nil, 0o644), os.MkdirAll(filepath.Dir(key), 0o755),
				link(target, key)); err != nil {
				t.Fatal(err)
			}
			said, err := h.fixed(t, false, keysCheck)
			if err != nil || !strings.HasPrefix(said, "by hand: keys: give godwit key files of its own") {
				t.Errorf("%v, %s", err, said)
			}
			if got := mode(t, target); got != 0o644 {
				t.Errorf("the other program's file has mode %o", got)
			}
			if err := closeKey(key); err == nil || mode(t, target) != 0o644 {
				t.Errorf("a link that came after the look is followed: %v", err)
			}
		})
	}
}

// A key that cannot be looked at is a finding. A link to a file that root alone reads is none.
func TestKeysThatAreLookedAt(t *testing.T) {
	h, _ := aHost(t)
	h.cfg.TLS.Key = filepath.Join(h.cfg.StateDir, "file", "key")
	if err := errors.Join(os.MkdirAll(h.cfg.PKIDir(), 0o755),
		os.WriteFile(filepath.Dir(h.cfg.TLS.Key), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if f := checkKeys(h.cfg); f.OK || !strings.Contains(f.Detail, "not a directory") {
		t.Errorf("what is no directory: %+v", f)
	}
	h.cfg.TLS.Key = ""
	if err := os.Symlink(filepath.Dir(h.cfg.StateDir+"/file/key"), h.cfg.PKIDir()+"/ca.key"); err != nil {
		t.Fatal(err)
	}
	if f := checkKeys(h.cfg); !f.OK {
		t.Errorf("a link to a file of root's alone: %+v", f)
	}
}

// A directory, or a key, that another user owns is a finding. A directory is not given to root: its content may be the
// other user's.
func TestWhatAnotherUserOwns(t *testing.T) {
	h, _ := aHost(t)
	key := filepath.Join(h.cfg.PKIDir(), "ca.key")
	if err := errors.Join(os.MkdirAll(h.cfg.PKIDir(), 0o755), os.MkdirAll(h.cfg.RunDir, 0o755),
		os.WriteFile(key, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	owner++
	for _, f := range checkFiles(h.cfg)[:2] {
		if f.OK {
			t.Errorf("%s is of another user: %+v", f.Check, f)
		}
	}
	said, err := h.fixed(t, false, dirsCheck)
	if err == nil || !strings.Contains(said, "belongs to user") || !strings.Contains(said, "&& chown root ") {
		t.Errorf("%v, %s", err, said)
	}
}
