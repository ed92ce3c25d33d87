package seal

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"filippo.io/age"
	"github.com/containerd/errdefs"
)

// Sealed bytes open as what they are, and as nothing else; no two nonces are equal, also
// when many seal at once.
func TestKey(t *testing.T) {
	k := NewKey()
	var mu sync.Mutex
	var all [][]byte
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 50 {
				b, err := k.Seal(nil, []byte("page"), "frame")
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				all = append(all, b)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	nonces := map[string]bool{}
	for _, b := range all {
		nonces[string(b[:nonceSize])] = true
		if plain, err := k.Open([]byte("x"), b, "frame"); err != nil || string(plain) != "xpage" {
			t.Fatalf("%q, %v", plain, err)
		}
		if len(b) != len("page")+Overhead {
			t.Fatal(len(b))
		}
	}
	if len(nonces) != len(all) {
		t.Errorf("%d nonces for %d seals", len(nonces), len(all))
	}
	one := all[0]
	for i := range one {
		bad := bytes.Clone(one)
		bad[i] ^= 1
		if _, err := k.Open(nil, bad, "frame"); !errdefs.IsDataLoss(err) {
			t.Errorf("byte %d altered: %v", i, err)
		}
	}
	for name, err := range map[string]error{
		"about something else": second(k.Open(nil, one, "index")),
		"short":                second(k.Open(nil, one[:Overhead-1], "frame")),
		"empty":                second(k.Open(nil, nil, "frame")),
		"another key":          second(NewKey().Open(nil, one, "frame")),
	} {
		if !errdefs.IsDataLoss(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func second[T any](_ T, err error) error { return err }

// A key that was read from elsewhere must not seal: its nonces would begin anew.
func TestKeyFromElsewhereOnlyOpens(t *testing.T) {
	k := NewKey()
	b, err := k.Seal(nil, []byte("page"), "frame")
	if err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(k)
	if err != nil {
		t.Fatal(err)
	}
	back := new(Key)
	if err := json.Unmarshal(data, back); err != nil {
		t.Fatal(err)
	}
	for _, k := range []*Key{back, FromSecret(k.Secret())} {
		if plain, err := k.Open(nil, b, "frame"); err != nil || string(plain) != "page" {
			t.Errorf("%q, %v", plain, err)
		}
		if _, err := k.Seal(nil, nil, "frame"); !errdefs.IsInternal(err) {
			t.Errorf("it seals: %v", err)
		}
	}
	if err := json.Unmarshal([]byte(`"AAAA"`), back); !errdefs.IsInvalidArgument(err) {
		t.Errorf("short key: %v", err)
	}
	if strings.Contains(k.String(), string(data)) {
		t.Error("a log would show the key")
	}
}

func TestLoad(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	id, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	good := base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{7}, 32)) + "\n"
	l, err := Load(Config{
		KeyFiles: []string{file("good", good, 0o600)}, Recipients: []string{id.Recipient().String()},
		IdentityFile: file("id", "# a comment\n"+id.String()+"\n", 0o400),
	})
	if err != nil || !l.On() {
		t.Fatal(l.On(), err)
	}
	k := NewKey()
	locked, err := l.Lock(k)
	if err != nil || len(locked) != 2 {
		t.Fatal(locked, err)
	}
	for _, w := range locked {
		if back, err := l.Unlock([]Locked{{Kind: "of a later build"}, w}); err != nil || back.Secret() != k.Secret() {
			t.Errorf("%s: %v", w.Kind, err)
		}
		if bytes.Contains(w.Data, k.secret[:8]) {
			t.Errorf("%s holds the key in the clear", w.Kind)
		}
		w.Data = w.Data[:len(w.Data)-1]
		if _, err := l.Unlock([]Locked{w}); !errdefs.IsDataLoss(err) {
			t.Errorf("%s, short: %v", w.Kind, err)
		}
	}
	for name, c := range map[string]struct {
		config Config
		class  func(error) bool
		text   string
	}{
		"no file": {Config{KeyFiles: []string{filepath.Join(dir, "none")}}, errdefs.IsFailedPrecondition,
			"seal.key_files"},
		"open to others": {Config{KeyFiles: []string{file("open", good, 0o644)}}, errdefs.IsFailedPrecondition, "chmod 600"},
		"short": {Config{KeyFiles: []string{file("short", "c2hvcnQ=", 0o600)}}, errdefs.IsInvalidArgument,
			"32 bytes"},
		"no base64": {Config{KeyFiles: []string{file("text", "secret!", 0o600)}}, errdefs.IsInvalidArgument, "32 bytes"},
		"recipient": {Config{Recipients: []string{"age1nobody"}}, errdefs.IsInvalidArgument, "seal.recipients"},
		"identity": {Config{IdentityFile: file("noid", "AGE-SECRET", 0o600)}, errdefs.IsInvalidArgument,
			"seal.identity_file"},
	} {
		if _, err := Load(c.config); !c.class(err) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
