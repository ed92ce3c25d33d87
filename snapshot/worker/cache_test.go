package worker

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	digest "github.com/opencontainers/go-digest"

	"godwit.dev/godwit/snapshot"
	"godwit.dev/godwit/snapshot/cache"
	"godwit.dev/godwit/snapshot/store/storetest"
)

// What one worker of a node has pushed, the next ones open and restore without a request;
// what looks at the store asks it. A cache above its limit is emptied once the job is over.
func TestNodeKeepsWhatItPushes(t *testing.T) {
	r := storetest.Start(t, &storetest.Registry{})
	cfg := r.Config(t, "vms/uid1")
	dir := t.TempDir()
	c := client()
	c.Cache = cache.Open(dir, 1<<30)
	job := pushJob(t, cfg)
	receipt, err := c.Push(t.Context(), job, nil)
	if err != nil {
		t.Fatal(err)
	}
	restore := func() (requests int) {
		t.Helper()
		r.Take()
		if _, err := c.Open(t.Context(), OpenJob{Store: cfg, Digest: receipt.Digest}); err != nil {
			t.Fatal(err)
		}
		fill := FillJob{Store: cfg, Digest: receipt.Digest, Spaces: []Space{{Name: "ram0", File: file(t, nil)}},
			State: file(t, nil)}
		if err := c.Fill(t.Context(), fill, nil); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(contents(t, fill.Spaces[0].File), contents(t, job.Spaces[0].File)) {
			t.Error("RAM differs after a restore")
		}
		return len(r.Take())
	}
	if n := restore(); n != 0 {
		t.Errorf("%d requests of a node that keeps the snapshot", n)
	}
	if _, err := c.Verify(t.Context(), VerifyJob{Store: cfg, Digest: receipt.Digest}, nil); err != nil {
		t.Error(err)
	}
	if len(r.Take()) == 0 {
		t.Error("verify did not look at the registry")
	}
	u, err := c.Cache.Usage()
	if err != nil || u.Hits == 0 || u.HitBytes < 3<<20 || u.KeptBytes < 3<<20 {
		t.Errorf("%+v, %v", u, err)
	}
	c.Cache = cache.Open(dir, 64<<10)
	if err := c.Cache.Evict(); err != nil {
		t.Fatal(err)
	}
	if restore() == 0 {
		t.Error("no request, and nothing was kept")
	}
	c.evictions.Wait()
	size, _, err := c.Cache.Size()
	if err != nil || size > 64<<10 {
		t.Errorf("%d bytes stay after a job, %v", size, err)
	}
	c.Cache = cache.Open(filepath.Join(dir, "usage"), 1<<30) // a file: there can be no directory
	if restore() == 0 {
		t.Error("no request without a cache")
	}
}

// A job is answered while the cache makes room, which takes long where many packs go.
func TestJobDoesNotWaitForEviction(t *testing.T) {
	r := storetest.Start(t, &storetest.Registry{})
	c := client()
	c.Cache = cache.Open(t.TempDir(), 1<<30)
	evicting.Lock()
	defer c.evictions.Wait()
	defer evicting.Unlock()
	answered := make(chan error, 1)
	job := pushJob(t, r.Config(t, "vms/uid1"))
	go func() {
		_, err := c.Push(t.Context(), job, nil)
		answered <- err
	}()
	select {
	case err := <-answered:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(30 * time.Second):
		t.Error("the answer of a job waits for an eviction")
	}
}

// rights looks at a worker while its VM stands still.
type rights struct {
	t    *testing.T
	seen int
}

// Prepare implements snapshot.Live.
func (r *rights) Prepare(context.Context) error { return nil }

// Pause implements snapshot.Live.
func (r *rights) Pause(context.Context) error {
	children, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil {
		return err
	}
	for _, path := range children {
		list, err := os.ReadFile(path)
		if err != nil {
			continue // a thread that has ended
		}
		for _, pid := range strings.Fields(string(list)) {
			r.look(pid)
		}
	}
	return nil
}

func (r *rights) look(pid string) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%s/status", pid))
	if err != nil {
		r.t.Error(err)
	}
	r.seen++
	for _, want := range []string{"NoNewPrivs:\t1\n", "CapEff:\t0000000000000000\n", "CapPrm:\t0000000000000000\n"} {
		if !strings.Contains(string(status), want) {
			r.t.Errorf("the process that pushes: no %q", want)
		}
	}
}

// Save implements snapshot.Live.
func (r *rights) Save(context.Context) (json.RawMessage, error) { return nil, nil }

// The process that pushes has no rights either, when it reads the VM.
func TestPushIsConfined(t *testing.T) {
	job := pushJob(t, storetest.Start(t, &storetest.Registry{}).Config(t, "vms/uid1"))
	r := &rights{t: t}
	job.Live = r
	receipt, err := client().Push(t.Context(), job, nil)
	if err != nil || receipt.Digest == digest.Digest("") {
		t.Fatal(receipt, err)
	}
	if r.seen == 0 {
		t.Error("no worker was seen")
	}
}

// A VM whose pages are those of a golden snapshot wakes without a request on a node that has read or made the
// golden snapshot. It does so with what is kept of that, which the VM's worker may read and not change.
func TestNodeKeepsGoldenPacks(t *testing.T) {
	r := storetest.Start(t, &storetest.Registry{})
	own, shared := r.Config(t, "vms/uid1"), r.Config(t, "vms/golden")
	maker, reader := client(), client()
	maker.Cache, reader.Cache = cache.Open(t.TempDir(), 1<<30), cache.Open(t.TempDir(), 1<<30)
	job := pushJob(t, own)
	image := digest.FromString("image")
	made := job
	made.Store, made.State = shared, nil
	made.Make = &snapshot.GoldenInfo{Image: image, VMM: "qemu", Memory: ramSize, VCPUs: 1}
	golden, err := maker.Push(t.Context(), made, nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]*Client{"the node that made it": maker, "the node that read it": reader} {
		table := file(t, nil)
		if _, err := c.Golden(t.Context(), GoldenJob{Store: shared, Digest: golden.Digest, Table: table}); err != nil {
			t.Fatal(err)
		}
		job.Golden = table
		receipt, err := c.Push(t.Context(), job, nil)
		if err != nil || receipt.Ungolden != "" || receipt.Figures.New > 0 {
			t.Fatalf("%s: %+v, %v", name, receipt, err)
		}
		beside := snapshot.GoldenOf(own.Repository)
		if c.Cache.Has(own.Repository, "", receipt.Digest) || !c.Cache.Has(own.Repository, beside, receipt.Digest) {
			t.Errorf("%s: the VM's own packs are all there is: the test shows nothing", name)
		}
		restore := func() (requests int) {
			t.Helper()
			r.Take()
			fill := FillJob{Store: own, Digest: receipt.Digest, Spaces: []Space{{Name: "ram0", File: file(t, nil)}},
				State: file(t, nil)}
			if err := c.Fill(t.Context(), fill, nil); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(contents(t, fill.Spaces[0].File), contents(t, job.Spaces[0].File)) {
				t.Error("RAM differs after a restore")
			}
			return len(r.Take())
		}
		if n := restore(); n != 0 {
			t.Errorf("%s: %d requests", name, n)
		}
		lease, err := c.Cache.Join(own.Repository, beside)
		if err != nil {
			t.Fatal(err)
		}
		lease.Close()
		packs, err := filepath.Glob(filepath.Join(lease.Shared, "*sha256-*"))
		if err != nil || len(packs) == 0 {
			t.Fatalf("%s: %d objects, %v", name, len(packs), err)
		}
		for _, p := range packs { // damaged, all of them
			if err := os.Truncate(p, 1); err != nil {
				t.Fatal(err)
			}
		}
		if restore() == 0 {
			t.Errorf("%s: no request, and what is kept is damaged", name)
		}
		if n := restore(); n != 0 {
			t.Errorf("%s: %d requests for what was fetched", name, n)
		}
	}
}
