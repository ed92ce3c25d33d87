package registry

import (
	"encoding/json"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	digest "github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"godwit.dev/godwit/api/config"
	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/snapshot"
	"godwit.dev/godwit/snapshot/store"
	"godwit.dev/godwit/snapshot/store/storetest"
)

// ofNode is a registry as a daemon uses it.
func ofNode(t *testing.T, r *storetest.Registry) *Registry {
	t.Helper()
	cfg := config.Default()
	c := r.Config(t, "godwit")
	cfg.Registry.Repository, cfg.Registry.PlainHTTP, cfg.Registry.DockerConfig = c.Repository, true, c.DockerConfig
	return New(cfg)
}

// held puts something that can be deleted under a tag of VM uid1.
func held(t *testing.T, r *Registry, operation string) (repository, dgst, tag string) {
	t.Helper()
	repository = r.Config.Registry.Repository + "/uid1"
	st, err := r.Open(t.Context(), repository)
	if err != nil {
		t.Fatal(err)
	}
	ref := snapshot.Ref{VM: "default/web", UID: "uid1", Operation: operation, Attempt: 1, Generation: 2}
	if err := snapshot.NewHold(st, ref).Keep(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	info, err := st.Stat(t.Context(), store.Manifest(ref.HoldTag()))
	if err != nil {
		t.Fatal(err)
	}
	return repository, info.Digest.String(), ref.HoldTag()
}

// The right to delete is asked for once, at start. While it is missing, no deletion asks the
// store before the next probe is due. A right that was granted since is then used.
func TestRightIsFoundOnce(t *testing.T) {
	s := storetest.Start(t, &storetest.Registry{NoDelete: http.StatusForbidden})
	r := ofNode(t, s)
	r.AskRights(t.Context())
	repository, d, tag := held(t, r, "op")
	s.Take()
	for range 3 {
		if err := r.Drop(t.Context(), repository, d, tag, "uid1"); !errdefs.IsPermissionDenied(err) {
			t.Errorf("drop: %v", err)
		}
	}
	if n := len(s.Take()); n != 0 {
		t.Errorf("a store that had refused was asked %d times", n)
	}
	rights := r.rights.of(repository)
	due := func() {
		rights.mu.Lock()
		defer rights.mu.Unlock()
		rights.again = time.Now()
	}
	due()
	if err := r.Drop(t.Context(), repository, d, tag, "uid1"); !errdefs.IsPermissionDenied(err) {
		t.Errorf("drop: %v", err)
	}
	if n := storetest.Count(s.Take(), "DELETE /v2/godwit/doctor/"); n != 1 || rights.pause != 2*firstProbePause {
		t.Errorf("asked again %d times, next in %v", n, rights.pause)
	}
	s.Change(func() { s.NoDelete = 0 })
	due()
	if err := r.Drop(t.Context(), repository, d, tag, "uid1"); err != nil {
		t.Errorf("drop after the right was granted: %v", err)
	}
	if err, _ := rights.refused(); err != nil || rights.pause != 0 {
		t.Errorf("still refused: %v, %v", err, rights.pause)
	}
}

// One snapshot that may not be deleted says nothing of the others.
func TestOneRefusal(t *testing.T) {
	var spared string
	s := storetest.Start(t, &storetest.Registry{Script: func(_ int, q *http.Request) storetest.Fault {
		if q.Method == http.MethodDelete && spared != "" && strings.HasSuffix(q.URL.Path, spared) {
			return storetest.Fault{Status: http.StatusForbidden}
		}
		return storetest.Fault{}
	}})
	r := ofNode(t, s)
	r.AskRights(t.Context())
	repository, first, firstTag := held(t, r, "a")
	_, second, secondTag := held(t, r, "b")
	spared = first
	if err := r.Drop(t.Context(), repository, first, firstTag, "uid1"); !errdefs.IsPermissionDenied(err) {
		t.Errorf("the one: %v", err)
	}
	if err := r.Drop(t.Context(), repository, second, secondTag, "uid1"); err != nil {
		t.Errorf("the other: %v", err)
	}
}

// What is not godwit's, or has a name that somebody gave it, is no leftover.
func TestLeftovers(t *testing.T) {
	s := storetest.Start(t, &storetest.Registry{})
	r := ofNode(t, s)
	repository, d, tag := held(t, r, "op")
	st, err := r.Open(t.Context(), repository)
	if err != nil {
		t.Fatal(err)
	}
	put := func(tag string, m v1.Manifest) {
		t.Helper()
		data, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		c := store.Bytes(data, digest.FromBytes(data))
		c.MediaType = v1.MediaTypeImageManifest
		if err := st.Put(t.Context(), store.Manifest(tag), c); err != nil {
			t.Fatal(err)
		}
	}
	empty := v1.DescriptorEmptyJSON
	image := v1.Manifest{MediaType: v1.MediaTypeImageManifest, Config: empty, Layers: []v1.Descriptor{}}
	image.SchemaVersion = 2
	put("latest", image)
	image.ArtifactType = snapshot.HoldType
	put("p9-broken", image) // no annotations
	image.Annotations = map[string]string{
		snapshot.AnnotationVM: "default/web", snapshot.AnnotationUID: "uid1", snapshot.AnnotationOperation: "mine",
		snapshot.AnnotationGeneration: "1", snapshot.AnnotationAttempt: "1",
	}
	put("keep-this", image)
	signed := digest.FromString("a push that died")
	put(snapshot.SignatureTag(signed), image)
	put(snapshot.SignatureTag(digest.Digest(d)), image) // of what is there
	image.Annotations[snapshot.AnnotationOperation], image.Annotations[snapshot.AnnotationAttempt] = "move", "2"
	moved := record.SnapshotTag(1, "move", 2) // as a cold move names what it makes
	put(moved, image)
	all, err := r.Leftovers(t.Context(), repository)
	if err != nil || len(all) != 3 || all[0].Tag != moved || all[0].Operation != "move" {
		t.Fatalf("%+v, %v", all, err)
	}
	err, all = r.Drop(t.Context(), repository, all[0].Digest, all[0].Tag, "uid1"), all[1:]
	if err == nil && len(all) == 2 && all[1].UID == "uid1" && all[1].Digest == signed.String() {
		err, all = r.Drop(t.Context(), repository, all[1].Digest, all[1].Tag, "uid1"), all[:1]
		if left, e := r.Leftovers(t.Context(), repository); e != nil || len(left) != 1 {
			t.Errorf("after the drop of a signature: %+v, %v", left, e)
		}
	}
	if err != nil || len(all) != 1 || all[0].Digest != d || all[0].Tag != tag || !all[0].Hold || all[0].UID != "uid1" ||
		all[0].Operation != "op" {
		t.Errorf("%+v, %v", all, err)
	}
	if _, _, err := r.Collect(t.Context(), repository, time.Hour, false); err != nil {
		t.Errorf("collect of a registry: %v", err)
	}
	if n, _, err := r.Collect(t.Context(), store.LayoutPrefix+filepath.Join(t.TempDir(), "none"), time.Hour,
		false); n != 0 || err != nil {
		t.Errorf("collect of a layout that is not there: %d, %v", n, err)
	}
}
