//go:build integration

package badinput

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/integration/observer"
)

// tamperingPrograms are godwit's, but for a worker that alters one byte of each disk that it fetches, and says that
// all is well. It does so for as long as a file called tamper is next to them. A snapshot that took over a worker
// could do so.
func tamperingPrograms(t *testing.T) (dir string) {
	t.Helper()
	root, err := harness.Root()
	if err != nil {
		t.Fatal(err)
	}
	dir = t.TempDir()
	file := filepath.Join(root, "snapshot", "worker", "main.go")
	source, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	const honest = "s.Disk(ctx, d.Digest, d.File)"
	if strings.Count(string(source), honest) != 1 {
		t.Fatalf("%s does not bring disks by %s any more", file, honest)
	}
	altered := strings.Replace(string(source), honest, "s.Disk(ctx, d.Digest, &tampering{d.File, 0})", 1) + `
// tampering changes one byte if the file tamper exists. It looks for that file before its process is confined.
type tampering struct {
	to *File
	at int
}

var tampers = func() bool { _, err := os.Stat(` + "`" + filepath.Join(dir, "tamper") + "`" + `); return err == nil }()

func (l *tampering) Write(data []byte) (int, error) {
	own := append([]byte(nil), data...)
	if at := 5000 - l.at; tampers && at >= 0 && at < len(own) {
		own[at] ^= 1
	}
	l.at += len(data)
	return l.to.Write(own)
}
`
	overlay := map[string]map[string]string{"Replace": {file: filepath.Join(dir, "main.go")}}
	data, err := json.Marshal(overlay)
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{"main.go": []byte(altered), "overlay.json": data} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-overlay", filepath.Join(dir, "overlay.json"),
		"-o", dir+"/",
		"./cmd/containerd-shim-godwit-v1", "./cmd/godwitd", "./cmd/godwit")
	cmd.Dir, cmd.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build: %v: %s", err, out)
	}
	if err := os.Symlink(filepath.Join(root, "bin", "guest"), filepath.Join(dir, "guest")); err != nil {
		t.Fatal(err)
	}
	return dir
}

// disksOf are the disks that a node keeps below a directory of its cache, each with whether its
// content is that of its name.
func disksOf(t *testing.T, n *harness.Node, dir string) map[string]bool {
	t.Helper()
	all := map[string]bool{}
	files, err := filepath.Glob(filepath.Join(n.Dir, "lib", "cache", dir, "sha256-*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256(data)
		all[f] = strings.Contains(f, hex.EncodeToString(sum[:]))
	}
	return all
}

// A worker that lies about the disk of an image ends its wake, and leaves nothing in the node's
// cache: the VM sleeps, and wakes from an honest one. A disk with other content that an earlier
// build has left there is thrown away, not used.
func TestWorkerThatLies(t *testing.T) {
	programs := tamperingPrograms(t)
	h := harness.New(t, harness.Options{Nodes: 2, Registry: harness.PlainHTTP, Godwitd: true, Images: true,
		Config: uncached, Programs: programs})
	conn, err := h.ListenPacket(net.JoinHostPort(harness.Gateway, beaconPort))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	s := &site{Harness: h, watch: observer.Watch(conn)}
	a, b := s.Node(0), s.Node(1)
	g := s.run(t, a, "believer")
	good := g.hibernate(t, a)

	tamper := filepath.Join(programs, "tamper")
	if err := os.WriteFile(tamper, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	godwitFails(t, b, "wake", g.id).want(t, "DataLoss", "disk sha256:", "its content is sha256:")
	if left := disksOf(t, b, "*"); len(left) != 0 {
		t.Errorf("the cache has %v", left)
	}
	if got := g.sleeps(t); got != good {
		t.Errorf("it sleeps in %s, not %s", got, good)
	}
	if err := os.Remove(tamper); err != nil {
		t.Fatal(err)
	}
	g.wake(t, b)
	g.runsOn(t, b)
	g.hibernate(t, b)

	kept := disksOf(t, b, "verified")
	if len(kept) == 0 {
		t.Fatal("the cache has no disk")
	}
	for file, right := range kept {
		if !right {
			t.Errorf("%s has other content", file)
		}
		old := filepath.Join(filepath.Dir(filepath.Dir(file)), "disks", filepath.Base(file))
		data, err := os.ReadFile(file)
		if err == nil {
			data[len(data)/2] ^= 1
			err = os.WriteFile(old, data, 0o444)
		}
		if err == nil {
			err = os.Remove(file)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	g.wake(t, b)
	g.runsOn(t, b)
	if left := disksOf(t, b, "disks"); len(left) != 0 {
		t.Errorf("the tampered disks are there: %v", left)
	}
	for file, right := range disksOf(t, b, "verified") {
		if !right {
			t.Errorf("%s has other content", file)
		}
		delete(kept, file)
	}
	if len(kept) != 0 {
		t.Errorf("not there again: %v", kept)
	}
	g.remove(t, b)
}
