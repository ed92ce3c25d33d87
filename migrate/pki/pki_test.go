package pki_test

import (
	"bytes"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/migrate/pki"
)

// cluster makes a CA and serves joins.
func cluster(t *testing.T) (dir, address string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "pki")
	if err := pki.Init(dir, "first", []string{"127.0.0.1", "first.example"}); err != nil {
		t.Fatal(err)
	}
	id, err := pki.Load(pki.In(dir))
	if err != nil {
		t.Fatal(err)
	}
	authority, err := pki.OpenAuthority(dir)
	if err != nil {
		t.Fatal(err)
	}
	l, err := tls.Listen("tcp", "127.0.0.1:0", id.Server(true))
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { _ = authority.Enroll(conn) })
		}
	})
	t.Cleanup(func() { _ = l.Close(); wg.Wait() })
	return dir, l.Addr().String()
}

func token(t *testing.T, dir, node string, valid time.Duration) string {
	t.Helper()
	authority, err := pki.OpenAuthority(dir)
	if err != nil {
		t.Fatal(err)
	}
	text, err := authority.Token(node, valid, false)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestInitKeepsWhatIsThere(t *testing.T) {
	dir, _ := cluster(t)
	before, err := os.ReadFile(filepath.Join(dir, "ca.key"))
	if err != nil {
		t.Fatal(err)
	}
	if err := pki.Init(dir, "first", nil); !errdefs.IsAlreadyExists(err) {
		t.Fatalf("second init: %v", err)
	}
	after, _ := os.ReadFile(filepath.Join(dir, "ca.key"))
	if string(before) != string(after) {
		t.Fatal("the CA's key has changed")
	}
	for name, want := range map[string]os.FileMode{"ca.key": 0o600, "node.key": 0o600, "ca.crt": 0o644, "node.crt": 0o644,
		".": 0o700} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: mode %v (%v), want %v", name, info.Mode().Perm(), err, want)
		}
	}
}

func TestInitRefusesNames(t *testing.T) {
	for _, name := range []string{"", "a/b", "../x", "-a", "a b"} {
		if err := pki.Init(t.TempDir(), name, nil); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestJoin(t *testing.T) {
	dir, address := cluster(t)
	text := token(t, dir, "second", time.Minute)
	joined := t.TempDir()
	node, err := pki.Join(t.Context(), joined, address, text, []string{"127.0.0.1"})
	if err != nil || node != "second" {
		t.Fatalf("join: %q, %v", node, err)
	}
	id, err := pki.Load(pki.In(joined))
	if err != nil || id.Node() != "second" {
		t.Fatalf("load: %v", err)
	}
	handshake(t, dir, id)
	if _, err := pki.Join(t.Context(), joined, address, text, nil); !errdefs.IsAlreadyExists(err) {
		t.Fatalf("second join in the same place: %v", err)
	}
	if _, err := pki.Join(t.Context(), t.TempDir(), address, text, nil); !errors.Is(err, errdefs.ErrUnauthenticated) {
		t.Fatalf("token used twice: %v", err)
	}
}

func TestJoinRefused(t *testing.T) {
	dir, address := cluster(t)
	otherDir, otherAddress := cluster(t)
	good := token(t, dir, "second", time.Minute)
	data, err := base64.RawURLEncoding.DecodeString(strings.TrimPrefix(good, "godwit1."))
	if err != nil {
		t.Fatal(err)
	}
	altered := "godwit1." + base64.RawURLEncoding.EncodeToString(bytes.Replace(data, []byte("second"), []byte("first"), 1))
	tests := []struct {
		name, address, token string
		want                 error
	}{
		{"expired", address, token(t, dir, "second", -time.Minute), errdefs.ErrUnauthenticated},
		{"of another cluster, to its own fingerprint's server", address, token(t, otherDir, "second", time.Minute),
			errdefs.ErrUnauthenticated},
		{"to another cluster", otherAddress, good, errdefs.ErrUnauthenticated},
		{"no token", address, "hello", errdefs.ErrInvalidArgument},
		{"cut", address, good[:len(good)/2], errdefs.ErrInvalidArgument},
		{"for another node than it was made for", address, altered, errdefs.ErrUnauthenticated},
		{"no server there", "127.0.0.1:1", good, errdefs.ErrUnavailable},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			into := t.TempDir()
			if _, err := pki.Join(t.Context(), into, tt.address, tt.token, nil); !errors.Is(err, tt.want) {
				t.Fatalf("error %v, want %v", err, tt.want)
			}
			if left, _ := os.ReadDir(into); len(left) != 0 {
				t.Fatalf("left: %v", left)
			}
		})
	}
}

func TestSignByFile(t *testing.T) {
	dir, _ := cluster(t)
	into := t.TempDir()
	csr, err := pki.Request(into, "third", []string{"third.example"})
	if err != nil {
		t.Fatal(err)
	}
	authority, err := pki.OpenAuthority(dir)
	if err != nil {
		t.Fatal(err)
	}
	chain, err := authority.Sign(csr, "third")
	if err != nil {
		t.Fatal(err)
	}
	if err := pki.Install(into, "fourth", chain); !errdefs.IsInvalidArgument(err) {
		t.Fatalf("installed under another name: %v", err)
	}
	if err := pki.Install(into, "third", chain); err != nil {
		t.Fatal(err)
	}
	id, err := pki.Load(pki.In(into))
	if err != nil {
		t.Fatal(err)
	}
	handshake(t, dir, id)
	if _, err := authority.Sign([]byte("junk"), "third"); !errdefs.IsInvalidArgument(err) {
		t.Fatalf("junk: %v", err)
	}
}

func TestNoAuthorityHere(t *testing.T) {
	_, err := pki.OpenAuthority(t.TempDir())
	if !errdefs.IsNotFound(err) || !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("error %v", err)
	}
}

// TestReload replaces a node's files under its identity.
func TestReload(t *testing.T) {
	dir, address := cluster(t)
	a, b := t.TempDir(), t.TempDir()
	for into, node := range map[string]string{a: "alpha", b: "beta"} {
		if _, err := pki.Join(t.Context(), into, address, token(t, dir, node, time.Minute), nil); err != nil {
			t.Fatal(err)
		}
	}
	id, err := pki.Load(pki.In(a))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"node.key", "node.crt"} {
		if err := os.Rename(filepath.Join(b, name), filepath.Join(a, name)); err != nil {
			t.Fatal(err)
		}
		if name == "node.key" && id.Node() != "alpha" {
			t.Fatal("half-replaced files were taken")
		}
	}
	if id.Node() != "beta" { // what connections show then: TestRotation
		t.Fatal("replaced files were not read")
	}
	if err := os.Chmod(filepath.Join(a, "node.key"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := pki.Load(pki.In(a)); !errdefs.IsPermissionDenied(err) {
		t.Fatalf("key that all can read: %v", err)
	}
}

// TestNodeIsNoController shows that a joined node cannot serve the records.
func TestNodeIsNoController(t *testing.T) {
	dir, address := cluster(t)
	into := t.TempDir()
	if _, err := pki.Join(t.Context(), into, address, token(t, dir, "rogue", time.Minute),
		[]string{"127.0.0.1"}); err != nil {
		t.Fatal(err)
	}
	first, err := pki.Load(pki.In(dir))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := shake(t, into, first); !errors.Is(err, errdefs.ErrUnauthenticated) {
		t.Fatalf("a node passed for the controller: %v", err)
	}
}

func handshake(t *testing.T, serverDir string, client *pki.Identity) {
	t.Helper()
	node, err := shake(t, serverDir, client)
	if err != nil || node != client.Node() {
		t.Fatalf("handshake: server saw %q: %v", node, err)
	}
}

// shake connects client to a server with the identity in serverDir; it answers the node
// that the server saw.
func shake(t *testing.T, serverDir string, client *pki.Identity) (string, error) {
	t.Helper()
	id, err := pki.Load(pki.In(serverDir))
	if err != nil {
		t.Fatal(err)
	}
	near, far := net.Pipe()
	defer near.Close()
	defer far.Close()
	var node string
	var serverErr error
	var wg sync.WaitGroup
	wg.Go(func() {
		server := tls.Server(far, id.Server(false))
		if serverErr = server.HandshakeContext(t.Context()); serverErr == nil {
			node, serverErr = pki.NodeOf(server.ConnectionState().PeerCertificates[0])
		}
		far.Close()
	})
	conn := tls.Client(near, client.Client())
	err = conn.HandshakeContext(t.Context())
	near.SetDeadline(time.Now().Add(5 * time.Second))
	if err == nil {
		_, _ = conn.Read(make([]byte, 1)) // the server's tickets, and its end
	}
	near.Close()
	wg.Wait()
	if err != nil {
		return "", err
	}
	return node, serverErr
}

// TestLoadOf shows that a node does not take another node's certificate for its own.
func TestLoadOf(t *testing.T) {
	dir, _ := cluster(t)
	if _, err := pki.LoadOf("first", pki.In(dir)); err != nil {
		t.Errorf("its own: %v", err)
	}
	if _, err := pki.LoadOf("second", pki.In(dir)); !errdefs.IsInvalidArgument(err) ||
		!strings.Contains(err.Error(), "tls.cert") {
		t.Errorf("another node's: %v", err)
	}
}
