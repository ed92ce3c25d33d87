package worker

import (
	"bytes"
	"context"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/containerd/errdefs"
	digest "github.com/opencontainers/go-digest"

	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/snapshot"
	"godwit.dev/godwit/snapshot/store"
)

// The test binary is the worker when it is told so.
func TestMain(m *testing.M) {
	if os.Getenv("GODWIT_TEST_WORKER") != "" {
		os.Exit(Main(context.Background(), os.Stdin, os.Stdout))
	}
	os.Exit(m.Run())
}

func client() *Client {
	return &Client{Command: []string{"/proc/self/exe"}, Env: []string{"GODWIT_TEST_WORKER=1"}}
}

const ramSize = 8 << 20

func file(t *testing.T, data []byte) *File {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "f"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if _, err := f.WriteAt(data, 0); err != nil {
		t.Fatal(err)
	}
	return Open(f)
}

func noise(n int) []byte {
	rng := rand.New(rand.NewPCG(1, 2))
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return b
}

func pushJob(t *testing.T, cfg store.Config) PushJob {
	t.Helper()
	ram := file(t, noise(3<<20))
	if err := ram.Truncate(ramSize); err != nil {
		t.Fatal(err)
	}
	return PushJob{
		Store:  cfg,
		Ref:    snapshot.Ref{VM: "default/vm1", UID: "uid1", Operation: "op1", Attempt: 1},
		Spec:   &spec.Spec{Version: spec.Version, Namespace: "default", ID: "vm1", UID: "uid1", Memory: ramSize},
		Spaces: []Space{{Name: "ram0", File: ram}},
		State:  file(t, []byte("state")),
	}
}

func contents(t *testing.T, f *File) []byte {
	t.Helper()
	data, err := os.ReadFile(f.Name())
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func roundTrip(t *testing.T, cfg store.Config) {
	t.Helper()
	c := client()
	job := pushJob(t, cfg)
	var mu sync.Mutex
	captured := 0
	receipt, err := c.Push(t.Context(), job, func(p Progress) {
		mu.Lock()
		defer mu.Unlock()
		if !p.Captured.IsZero() {
			captured++
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if captured != 1 {
		t.Errorf("captured was told %d times", captured)
	}
	opened, err := c.Open(t.Context(), OpenJob{Store: cfg, Digest: receipt.Digest, Want: &job.Ref})
	if err != nil {
		t.Fatal(err)
	}
	if opened.Config.Ref != job.Ref || opened.Pages != 3<<20 {
		t.Errorf("opened %+v, %d bytes of pages", opened.Config.Ref, opened.Pages)
	}
	fill := FillJob{
		Store: cfg, Digest: receipt.Digest, Want: &job.Ref,
		Spaces: []Space{{Name: "ram0", File: file(t, nil)}}, State: file(t, nil), Table: file(t, nil),
	}
	if err := c.Fill(t.Context(), fill, nil); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(contents(t, fill.Spaces[0].File), contents(t, job.Spaces[0].File)) {
		t.Error("RAM differs after a restore")
	}
	if got := string(contents(t, fill.State)); got != "state" {
		t.Errorf("state is %q after a restore", got)
	}
	job.Table, job.Ref.Operation, job.Spaces[0].File = fill.Table, "op2", fill.Spaces[0].File
	second, err := c.Push(t.Context(), job, nil)
	if err != nil {
		t.Fatal(err)
	}
	if second.Figures.New != 0 || second.Figures.Pushed*10 > receipt.Figures.Pushed {
		t.Errorf("second push: %+v, first %+v", second.Figures, receipt.Figures)
	}
}

func TestRoundTripLayout(t *testing.T) {
	roundTrip(t, store.Config{Repository: store.LayoutPrefix + filepath.Join(t.TempDir(), "uid1")})
}

func TestErrorsKeepTheirClass(t *testing.T) {
	cfg := store.Config{Repository: store.LayoutPrefix + filepath.Join(t.TempDir(), "uid1")}
	if _, err := client().Push(t.Context(), pushJob(t, cfg), nil); err != nil {
		t.Fatal(err)
	}
	_, err := client().Open(t.Context(), OpenJob{Store: cfg, Digest: digest.FromString("other")})
	if !errdefs.IsNotFound(err) {
		t.Errorf("open of a digest that is not there: %v, want NotFound", err)
	}
	_, err = client().Open(t.Context(), OpenJob{Store: cfg, Digest: "../../etc/passwd"})
	if !errdefs.IsInvalidArgument(err) {
		t.Errorf("open of a path: %v, want InvalidArgument", err)
	}
}
