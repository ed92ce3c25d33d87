//go:build integration

package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	digest "github.com/opencontainers/go-digest"
	ocispecs "github.com/opencontainers/image-spec/specs-go"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/snapshot"
)

// keeper is a VM's record and what lies in the registry for it, made without a VM.
type keeper struct {
	*testing.T
	h       *harness.Harness
	records *record.Client
	vm      *nodev1.VM
	uid     string
}

func (k *keeper) put(path, mediaType string, data []byte) {
	k.Helper()
	client := http.Client{Transport: &http.Transport{DialContext: k.h.Dial, DisableKeepAlives: true}}
	req, err := http.NewRequestWithContext(k.Context(), http.MethodPut, "http://"+harness.RegistryHost+"/v2/"+path,
		bytes.NewReader(data))
	if err != nil {
		k.Fatal(err)
	}
	req.Header.Set("Content-Type", mediaType)
	resp, err := client.Do(req)
	if err != nil {
		k.Fatal(err)
	}
	defer resp.Body.Close()
	if text, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusCreated {
		k.Fatalf("PUT %s: %d %s", path, resp.StatusCode, text)
	}
}

// snapshot puts a manifest under its tag and returns its digest.
func (k *keeper) snapshot(ref snapshot.Ref) string {
	k.Helper()
	blob := []byte("{}")
	d := digest.FromBytes(blob)
	if err := k.h.Plant(k.repository(), d.String(), blob, false); err != nil {
		k.Fatal(err)
	}
	part := func(mediaType string) v1.Descriptor {
		return v1.Descriptor{MediaType: mediaType, Digest: d, Size: int64(len(blob))}
	}
	data, err := json.Marshal(v1.Manifest{
		Versioned: ocispecs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageManifest,
		ArtifactType: snapshot.ArtifactType,
		Config:       part(snapshot.MediaTypeConfig), Layers: []v1.Descriptor{part(snapshot.MediaTypeState),
			part(snapshot.MediaTypeIndex)},
		Annotations: map[string]string{
			snapshot.AnnotationVM: ref.VM, snapshot.AnnotationUID: ref.UID, snapshot.AnnotationOperation: ref.Operation,
			snapshot.AnnotationGeneration: fmt.Sprint(ref.Generation), snapshot.AnnotationAttempt: fmt.Sprint(ref.Attempt),
		},
	})
	if err != nil {
		k.Fatal(err)
	}
	k.put("godwit/"+k.uid+"/manifests/"+ref.Tag(), v1.MediaTypeImageManifest, data)
	return digest.FromBytes(data).String()
}

func (k *keeper) repository() string { return harness.Repository + "/" + k.uid }

// asleep takes the record through a hibernate, as a node does.
func (k *keeper) asleep(id string) string {
	k.Helper()
	rec, err := k.records.Get(k.Context(), &nodev1.GetRequest{Vm: k.vm})
	if err != nil {
		k.Fatal(err)
	}
	g := rec.GetGeneration()
	ref := snapshot.Ref{VM: "default/" + k.vm.GetId(), UID: k.uid, Operation: id, Attempt: 1, Generation: g}
	d := k.snapshot(ref)
	op := &nodev1.Operation{Id: id, Kind: nodev1.Kind_KIND_HIBERNATE, Attempt: 1, Source: "a", Generation: g,
		Repository: k.repository(), Tag: ref.Tag()}
	receipt := record.Receipt{Operation: id, Attempt: 1, Generation: g, Digest: d, Stopped: true, TotalBytes: 4096}
	steps := []func() error{
		func() error {
			_, err := k.records.Open(k.Context(), &nodev1.OpenRequest{Vm: k.vm, Operation: op})
			return err
		},
		func() error { return k.advance(op, nodev1.Phase_PHASE_TRANSFERRING, "") },
		func() error { return k.advance(op, nodev1.Phase_PHASE_SWITCHING, d) },
		func() error {
			_, err := k.records.Commit(k.Context(), &nodev1.CommitRequest{
				Vm: k.vm, Operation: id, Attempt: 1, Generation: g, Owner: &nodev1.Owner{Digest: d}, Receipt: receipt.String(),
			})
			return err
		},
		func() error { return k.advance(op, nodev1.Phase_PHASE_CLEANING, "") },
		func() error { return k.finish(op) },
	}
	k.take(steps)
	return d
}

// awake takes it through a wake.
func (k *keeper) awake(id string) {
	k.Helper()
	rec, err := k.records.Get(k.Context(), &nodev1.GetRequest{Vm: k.vm})
	if err != nil {
		k.Fatal(err)
	}
	op := &nodev1.Operation{Id: id, Kind: nodev1.Kind_KIND_WAKE, Attempt: 1, Destination: "a",
		Generation: rec.GetGeneration()}
	k.take([]func() error{
		func() error {
			_, err := k.records.Open(k.Context(), &nodev1.OpenRequest{Vm: k.vm, Operation: op})
			return err
		},
		func() error { return k.advance(op, nodev1.Phase_PHASE_SWITCHING, "") },
		func() error {
			_, err := k.records.Commit(k.Context(), &nodev1.CommitRequest{Vm: k.vm, Operation: id, Attempt: 1,
				Generation: op.GetGeneration(), Owner: &nodev1.Owner{Node: "a"}})
			return err
		},
		func() error { return k.finish(op) },
	})
}

func (k *keeper) take(steps []func() error) {
	k.Helper()
	for i, step := range steps {
		if err := step(); err != nil {
			k.Fatalf("step %d: %v", i, err)
		}
	}
}

func (k *keeper) advance(op *nodev1.Operation, phase nodev1.Phase, d string) error {
	_, err := k.records.Advance(k.Context(), &nodev1.AdvanceRequest{Vm: k.vm, Operation: op.GetId(), Attempt: 1,
		Generation: op.GetGeneration(), Phase: phase, Digest: d})
	return err
}

func (k *keeper) finish(op *nodev1.Operation) error {
	_, err := k.records.Finish(k.Context(), &nodev1.FinishRequest{Vm: k.vm, Operation: op.GetId(), Attempt: 1,
		Generation: op.GetGeneration(), Phase: nodev1.Phase_PHASE_SUCCEEDED})
	return err
}

// there reports whether the registry has the manifest.
func (k *keeper) there(d string) bool {
	k.Helper()
	all, err := k.h.Manifests(k.repository())
	if err != nil {
		k.Fatal(err)
	}
	return slices.Contains(all, d)
}

// With the real registry and daemon: a registry without
// deletes loses nothing and fails nothing; what is owed survives the daemon, shows, and is
// done once the right is granted. What is in use is never deleted.
func TestRetention(t *testing.T) {
	h := harness.New(t, harness.Options{Registry: harness.PlainHTTP, Godwitd: true, Config: func(*harness.Node) string {
		return "[retention]\nkeep = 2\n"
	}})
	n := h.Node(0)
	client := record.Local(filepath.Join(n.Dir, "run", "godwitd.sock"))
	defer client.Close()
	k := &keeper{T: t, h: h, records: client, vm: &nodev1.VM{Namespace: "default", Id: "web"}}
	rec, err := client.Ensure(t.Context(), &nodev1.EnsureRequest{Vm: k.vm})
	if err == nil {
		k.uid = rec.GetUid()
		_, err = client.Own(t.Context(), &nodev1.OwnRequest{Vm: k.vm, Node: "a", Generation: rec.GetGeneration()})
	}
	if err != nil {
		t.Fatal(err)
	}
	first := k.asleep("op1")
	k.awake("op2")
	refuses(t, n, "runs from it", "snapshot", "rm", first)
	second := k.asleep("op3")
	k.awake("op4")
	third := k.asleep("op5")
	if out := n.Godwit(t, "snapshot", "prune", "--dry-run", "-o", "wide"); !strings.Contains(out, first) ||
		strings.Contains(out, second) || !strings.Contains(out, "would be deleted") {
		t.Errorf("dry run: %s", out)
	}
	refuses(t, n, "owns the VM", "snapshot", "rm", third)
	refuses(t, n, "no VM has a snapshot", "snapshot", "rm", digest.FromString("x").String())

	h.Door.SetFault(func(_ int, r *http.Request) harness.Fault {
		if r.Method == http.MethodDelete {
			return harness.Fault{Status: http.StatusMethodNotAllowed}
		}
		return harness.Fault{}
	})
	n.Godwit(t, "snapshot", "rm", first)
	pending := func() bool { return strings.Contains(n.Godwit(t, "ps", "-o", "wide"), "cleanup pending (1)") }
	if !pending() || !k.there(first) || !strings.Contains(n.Godwit(t, "snapshot", "ls"), "cleanup pending") {
		t.Errorf("ps: %s, snapshot ls: %s", n.Godwit(t, "ps"), n.Godwit(t, "snapshot", "ls"))
	}
	if found, err := doctor(t, n); err != nil || found["right to delete"].OK || !found["store"].OK {
		t.Errorf("doctor: %v, %+v, %+v", err, found["right to delete"], found["store"])
	}
	if err := n.Godwitd.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := n.StartGodwitd(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !pending() {
		t.Errorf("after a restart: %s", n.Godwit(t, "ps"))
	}
	h.Door.SetFault(nil)
	for deadline := time.Now().Add(2 * time.Minute); pending(); time.Sleep(200 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the right was granted and cleanup is pending: %s", n.Godwit(t, "ps"))
		}
	}
	// A try that was under way when the right came may have dropped the tag alone, as with a
	// registry that deletes no manifest: its collector takes the rest.
	if list := n.Godwit(t, "snapshot", "ls", "-o", "wide"); strings.Contains(list, first) || !k.there(second) ||
		!k.there(third) {
		t.Errorf("second %v, third %v in the registry; %s", k.there(second), k.there(third), list)
	}
	refuses(t, n, "godwit rm --force web", "rm", "web")
	n.Godwit(t, "rm", "--force", "web")
	if out := n.Godwit(t, "ps", "-a"); strings.Contains(out, "web") || k.there(second) || k.there(third) {
		t.Errorf("after rm: %s, second %v, third %v in the registry", out, k.there(second), k.there(third))
	}
}

// refuses: the command fails and says why.
func refuses(t *testing.T, n *harness.Node, text string, args ...string) {
	t.Helper()
	out, err := n.RunGodwit(t.Context(), args...)
	if err == nil || !strings.Contains(err.Error()+out, text) {
		t.Errorf("godwit %s: %q, %v; want a refusal that says %q", strings.Join(args, " "), out, err, text)
	}
}
