//go:build integration

package worker

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	digest "github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"godwit.dev/godwit/snapshot"
	"godwit.dev/godwit/snapshot/store"
)

// registries are the programs of distribution 3 and of Debian's docker-registry 2.8.
func registries(t *testing.T) map[string]string {
	t.Helper()
	tools, err := filepath.Abs("../../bin/tools")
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{"distribution": filepath.Join(tools, "registry"), "docker-registry": filepath.Join(tools,
		"docker-registry")}
	for name, path := range all {
		if _, err := os.Stat(path); err != nil {
			t.Fatalf("prerequisite: %s: %v (make setup tools)", name, err)
		}
	}
	return all
}

// registry is one of them.
type registry struct {
	program  string
	extra    string // of its configuration
	noDelete bool
	addr     string
	conf     string
	cmd      *exec.Cmd
}

// startRegistry runs it until the test ends.
func startRegistry(t *testing.T, r *registry) *registry {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r.addr = l.Addr().String()
	l.Close()
	dir := t.TempDir()
	r.conf = filepath.Join(dir, "config.yml")
	text := fmt.Sprintf("version: 0.1\nlog:\n  level: error\nstorage:\n  filesystem:\n    rootdirectory: %s\n  "+
		"delete:\n    enabled: %v\nhttp:\n  addr: %s\n%s",
		dir, !r.noDelete, r.addr, r.extra)
	if err := os.WriteFile(r.conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	r.start(t)
	t.Cleanup(r.stop)
	return r
}

func (r *registry) config(t *testing.T) store.Config {
	return store.Config{Repository: r.addr + "/godwit/uid1", PlainHTTP: true, DockerConfig: t.TempDir()}
}

func (r *registry) start(t *testing.T) {
	t.Helper()
	r.cmd = exec.Command(r.program, "serve", r.conf)
	r.cmd.Stderr = os.Stderr
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		c, err := net.Dial("tcp", r.addr)
		if err == nil {
			c.Close()
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("registry does not listen on %s: %v", r.addr, err)
		}
	}
}

func (r *registry) stop() {
	if r.cmd == nil {
		return
	}
	_ = r.cmd.Process.Kill()
	_ = r.cmd.Wait()
	r.cmd = nil
}

// collect runs the registry's own garbage collection, as its documents want it: stopped.
func (r *registry) collect(t *testing.T, args ...string) {
	t.Helper()
	r.stop()
	out, err := exec.Command(r.program, append(append([]string{"garbage-collect"}, args...), r.conf)...).CombinedOutput()
	if err != nil {
		t.Fatalf("garbage-collect: %v: %s", err, out)
	}
	r.start(t)
}

// Delete and List against the real registry; a blob of another repository is mounted.
func TestManageRegistry(t *testing.T) {
	for name, program := range registries(t) {
		t.Run(name, func(t *testing.T) { manage(t, startRegistry(t, &registry{program: program}).config(t)) })
	}
}

func manage(t *testing.T, cfg store.Config) {
	st, err := store.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if list, err := snapshot.List(t.Context(), st); err != nil || len(list) != 0 {
		t.Errorf("list of a repository that is not there: %v, %v", list, err)
	}
	job := pushJob(t, cfg)
	receipt, err := client().Push(t.Context(), job, nil)
	if err != nil {
		t.Fatal(err)
	}
	list, err := snapshot.List(t.Context(), st)
	if err != nil || len(list) != 1 || list[0].Digest != receipt.Digest || list[0].Ref != job.Ref {
		t.Errorf("list: %+v, %v", list, err)
	}
	cfg2 := cfg
	cfg2.Repository = strings.Replace(cfg.Repository, "uid1", "uid2", 1)
	other, err := store.Open(cfg2)
	if err != nil {
		t.Fatal(err)
	}
	c := store.Content{Digest: digest.FromString("state"), Size: 5, From: cfg.Repository,
		Open: func() (io.ReadCloser, error) {
			return nil, errors.New("asked for the bytes of a blob that can be mounted")
		}}
	if err := other.Put(t.Context(), store.Blob(c.Digest), c); err != nil {
		t.Error(err)
	}
	for range 2 {
		if err := snapshot.Drop(t.Context(), st, receipt.Digest, receipt.Tag, "uid1"); err != nil {
			t.Error(err)
		}
	}
	if list, err := snapshot.List(t.Context(), st); err != nil || len(list) != 0 {
		t.Errorf("list after delete: %v, %v", list, err)
	}
}

// A registry that deletes nothing, which is the default of registries, says so with a class that is a refusal. It
// says so to the probe and to a deletion, and keeps the snapshot.
func TestDeletesDisabled(t *testing.T) {
	for name, program := range registries(t) {
		t.Run(name, func(t *testing.T) {
			r := startRegistry(t, &registry{program: program, noDelete: true})
			cfg := r.config(t)
			st, err := store.Open(cfg)
			if err != nil {
				t.Fatal(err)
			}
			rights := snapshot.Probe(t.Context(), st, "n1")
			if rights.Push != nil || rights.Pull != nil || !snapshot.Refused(rights.Delete) {
				t.Errorf("rights %+v", rights)
			}
			receipt, err := client().Push(t.Context(), pushJob(t, cfg), nil)
			if err != nil {
				t.Fatal(err)
			}
			if err := snapshot.Drop(t.Context(), st, receipt.Digest, receipt.Tag, "uid1"); !snapshot.Refused(err) {
				t.Errorf("drop: %v", err)
			}
			if ok, err := snapshot.Exists(t.Context(), st, receipt.Digest); !ok || err != nil {
				t.Errorf("exists: %v, %v", ok, err)
			}
		})
	}
}

// Each right of a registry that grants all is found, and the probe leaves no tag.
func TestProbeRegistry(t *testing.T) {
	for name, program := range registries(t) {
		st, err := store.Open(startRegistry(t, &registry{program: program}).config(t))
		if err != nil {
			t.Fatal(err)
		}
		if err := snapshot.Probe(t.Context(), st, "n1").Err(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if tags, err := st.Tags(t.Context()); err != nil || len(tags) != 0 {
			t.Errorf("%s: tags %v, %v", name, tags, err)
		}
	}
}

// The real garbage collection spares the packs of a capture under way while they are held, and takes them when they
// are not. It spares a snapshot, and one that was dropped is gone.
func TestGarbageCollection(t *testing.T) {
	for name, program := range registries(t) {
		for _, args := range [][]string{nil, {"--delete-untagged"}} {
			t.Run(name+strings.Join(args, ""), func(t *testing.T) {
				collected(t, startRegistry(t, &registry{program: program}), args)
			})
		}
	}
}

func collected(t *testing.T, r *registry, args []string) {
	cfg := r.config(t)
	st, err := store.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	job := pushJob(t, cfg)
	receipt, err := client().Push(t.Context(), job, nil)
	if err != nil {
		t.Fatal(err)
	}
	put := func(seed byte) v1.Descriptor {
		t.Helper()
		data := bytes.Repeat([]byte{seed, 'p', 'a', 'c', 'k'}, 1<<18)
		c := store.Bytes(data, digest.FromBytes(data))
		if err := st.Put(t.Context(), store.Blob(c.Digest), c); err != nil {
			t.Fatal(err)
		}
		return v1.Descriptor{MediaType: snapshot.MediaTypePack, Digest: c.Digest, Size: c.Size}
	}
	stays := func(what string, d v1.Descriptor, want bool) {
		t.Helper()
		_, err := store.ReadBlob(t.Context(), st, d.Digest, d.Size)
		if want && err != nil || !want && !errdefs.IsNotFound(err) {
			t.Errorf("%s: %v, want it to stay: %v", what, err, want)
		}
	}
	ref := job.Ref
	ref.Operation = "long"
	h := snapshot.NewHold(st, ref)
	first, second, loose := put(1), put(2), put(3)
	for _, packs := range [][]v1.Descriptor{{first}, {first, second}} {
		if err := h.Keep(t.Context(), packs); err != nil {
			t.Fatal(err)
		}
	}
	r.collect(t, args...)
	stays("first pack held", first, true)
	stays("second pack held", second, true)
	stays("a pack that nothing holds", loose, false)
	if err := h.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.collect(t, args...)
	stays("a pack let go", first, false)
	s, err := snapshot.Open(t.Context(), st, receipt.Digest, nil)
	if err != nil {
		t.Fatal(err)
	}
	if v, err := s.Verify(t.Context(), snapshot.VerifyOptions{}); err != nil || len(v.Bad) != 0 {
		t.Errorf("the snapshot: %+v, %v", v, err)
	}
	if err := snapshot.Drop(t.Context(), st, receipt.Digest, receipt.Tag, "uid1"); err != nil {
		t.Fatal(err)
	}
	r.collect(t, args...)
	if ok, err := snapshot.Exists(t.Context(), st, receipt.Digest); ok || err != nil {
		t.Errorf("a snapshot that was dropped and collected: %v, %v", ok, err)
	}
}

// Both registries honour Range, and a copy goes from one to the other.
func TestRangeAndCopy(t *testing.T) {
	programs := registries(t)
	from, to := startRegistry(t, &registry{program: programs["docker-registry"]}),
		startRegistry(t, &registry{program: programs["distribution"]})
	receipt, err := client().Push(t.Context(), pushJob(t, from.config(t)), nil)
	if err != nil {
		t.Fatal(err)
	}
	copied, err := client().Copy(t.Context(), CopyJob{From: Place{Store: from.config(t), Digest: receipt.Digest},
		To: to.config(t), Tag: "backup"}, nil)
	if err != nil || copied.Digest != receipt.Digest || copied.Sent < receipt.Figures.Pushed/2 {
		t.Fatalf("%+v, %v", copied, err)
	}
	if v, err := client().Verify(t.Context(), VerifyJob{Store: to.config(t), Digest: receipt.Digest}, nil); err != nil ||
		len(v.Bad) != 0 {
		t.Errorf("the copy: %+v, %v", v, err)
	}
	spaces, err := client().Diff(t.Context(), DiffJob{From: Place{Store: from.config(t), Digest: receipt.Digest},
		To: Place{Store: to.config(t), Digest: receipt.Digest}})
	if err != nil || len(spaces) == 0 || spaces[0].Changed+spaces[0].Added+spaces[0].Removed != 0 || spaces[0].Same == 0 {
		t.Errorf("diff of a snapshot and its copy: %+v, %v", spaces, err)
	}
	for _, r := range []*registry{from, to} {
		st, err := store.Open(r.config(t))
		if err != nil {
			t.Fatal(err)
		}
		data := []byte("0123456789")
		c := store.Bytes(data, digest.FromBytes(data))
		if err := st.Put(t.Context(), store.Blob(c.Digest), c); err != nil {
			t.Fatal(err)
		}
		body, err := st.(store.Ranger).GetRange(t.Context(), c.Digest, 3, 4)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(body)
		body.Close()
		if err != nil || string(got) != "3456" {
			t.Errorf("range of %s: %q, %v", r.program, got, err)
		}
	}
}
