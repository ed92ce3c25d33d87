package worker

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/containerd/errdefs"
	digest "github.com/opencontainers/go-digest"

	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/internal/errno"
	"godwit.dev/godwit/internal/fdtest"
	"godwit.dev/godwit/snapshot"
	"godwit.dev/godwit/snapshot/store"
)

// The test binary is the worker when it is told so.
func TestMain(m *testing.M) {
	switch os.Getenv("GODWIT_TEST_WORKER") {
	case "":
	case "confined":
		if err := probe(os.Args[1], os.Args[2], os.Args[3]); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println("confined")
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	default:
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
	for i := 0; i+8 <= n; i += 8 {
		binary.LittleEndian.PutUint64(b[i:], rng.Uint64())
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
		Spec:   &spec.Spec{Version: 1, Namespace: "default", ID: "vm1", UID: "uid1", Memory: ramSize, VCPUs: 1},
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
	if opened.Config.Ref != job.Ref || opened.Pages != 3<<20 || opened.RAM != 3<<20 {
		t.Errorf("opened %+v, %d bytes of pages, %d of RAM", opened.Config.Ref, opened.Pages, opened.RAM)
	}
	verdict, err := c.Verify(t.Context(), VerifyJob{Store: cfg, Digest: receipt.Digest}, nil)
	if err != nil || len(verdict.Bad) != 0 || verdict.Frames != 3<<20/(64<<10) {
		t.Errorf("verdict %+v, %v", verdict, err)
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
	size := int64(len(contents(t, fill.Table)))
	if err := fill.Table.Truncate(size - 1); err != nil {
		t.Fatal(err)
	}
	job.Ref.Operation = "op3"
	third, err := c.Push(t.Context(), job, nil) // a broken page table costs a full push, and is told
	if err != nil || third.Orphaned == "" || third.Figures.New != receipt.Figures.New {
		t.Errorf("push with a broken page table: %+v, %v; first %+v", third, err, receipt.Figures)
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

// A worker that is killed anywhere leaves no manifest and no temporary
// file, and the next attempt succeeds.
func TestKillPush(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "uid1")
	cfg := store.Config{Repository: store.LayoutPrefix + dir}
	job := pushJob(t, cfg)
	killed := errors.New("killed by the test")
	for n := range 4 {
		ctx, cancel := context.WithCancelCause(t.Context())
		lines := 0
		_, err := client().Push(ctx, job, func(p Progress) {
			if lines++; lines > n || p.Step == "commit" {
				cancel(killed)
			}
		})
		cancel(nil)
		_, stored := os.Stat(filepath.Join(dir, "index.json"))
		if !errors.Is(err, killed) || stored == nil { // it was faster, or its manifest than the signal
			if err := os.RemoveAll(dir); err != nil {
				t.Fatal(err)
			}
			continue
		}
		noLeftovers(t, dir)
	}
	if _, err := client().Push(t.Context(), job, nil); err != nil {
		t.Fatal(err)
	}
}

func noLeftovers(t *testing.T, dir string) {
	t.Helper()
	_ = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return nil
		}
		name, _ := filepath.Rel(dir, path)
		hex, blob := strings.CutPrefix(name, "blobs/sha256/")
		if (!blob || len(hex) != 64) && name != "oci-layout" && name != ".lock" {
			t.Errorf("left: %s", name)
		}
		return nil
	})
}

// The worker ends when its parent is gone, even where no signal tells it.
func TestParentGone(t *testing.T) {
	cmd := exec.Command("/proc/self/exe") // it is confined
	cmd.Env = append(os.Environ(), "GODWIT_TEST_WORKER=1")
	parent, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	block := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		parent.Close()
		<-r.Context().Done()
	}))
	defer block.Close()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	cfg := store.Config{Repository: strings.TrimPrefix(block.URL, "http://") + "/p/uid1", PlainHTTP: true,
		DockerConfig: t.TempDir()}
	data, err := json.Marshal(job{Open: &OpenJob{Store: cfg, Digest: digest.FromString("x")}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := parent.Write(append(data, '\n')); err != nil {
		t.Fatal(err)
	}
	var l line
	if err := json.NewDecoder(out).Decode(&l); err != nil || l.Error == nil || !errdefs.IsCanceled(l.Error) {
		t.Errorf("answer %+v, %v, want canceled", l.Error, err)
	}
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 1 {
		t.Errorf("it ended with %v", err)
	}
}

// A second tag in one repository would go with the first: a deletion names the digest.
func TestCopyNeedsAnotherRepository(t *testing.T) {
	st := store.Config{Repository: store.LayoutPrefix + t.TempDir()}
	_, err := client().Copy(t.Context(), CopyJob{From: Place{Store: st, Digest: digest.FromString("x")}, To: st,
		Tag: "backup"}, nil)
	if !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "under each tag") {
		t.Error(err)
	}
}

func TestRefusesBadJob(t *testing.T) {
	for _, in := range []string{"", "{}\n", "no json\n", `{"push":{}}` + "\n",
		`{"open":{"store":{"repository":"oci-layout:relative"}}}` + "\n"} {
		var out bytes.Buffer
		status := Main(t.Context(), strings.NewReader(in), &out)
		var l line
		if err := json.Unmarshal(out.Bytes(), &l); err != nil || status != 1 || !errdefs.IsInvalidArgument(l.Error) {
			t.Errorf("job %q: status %d, answer %s", in, status, out.Bytes())
		}
	}
}

func TestWorkerThatDies(t *testing.T) {
	c := &Client{Command: []string{"/bin/sh", "-c", "read job; echo bad luck >&2; exit 3"}}
	_, err := c.Open(t.Context(), OpenJob{})
	if !errdefs.IsInternal(err) || !strings.Contains(err.Error(), "bad luck") {
		t.Errorf("got %v", err)
	}
	c = &Client{Command: []string{"/bin/sh", "-c", "read job; cat /proc/$$/oom_score_adj >&2; exit 3"}}
	if _, err := c.Open(t.Context(), OpenJob{}); err == nil || !strings.Contains(err.Error(), firstToGo) {
		t.Errorf("%v, want a worker that goes before its VM", err)
	}
	if _, err := (&Client{Command: []string{"/nonexistent"}}).Open(t.Context(), OpenJob{}); err == nil {
		t.Error("no worker, no error")
	}
	c = client()
	c.Cgroup = []string{t.TempDir() + "/none"}
	if _, err := c.Open(t.Context(), OpenJob{}); err == nil || !strings.Contains(err.Error(), "move worker") {
		t.Errorf("cgroup that is not there: %v", err)
	}
}

// A worker that somebody has killed can be started again, also one that was killed within a line.
// One that dies by a fault of its own is a fault of godwit.
func TestClassOfAWorkerThatDies(t *testing.T) {
	for script, is := range map[string]func(error) bool{
		`read job; kill -KILL $$`: errdefs.IsUnavailable,
		`kill -KILL $$`:           errdefs.IsUnavailable,
		`exec 0<&-; echo '{"pause":true}'; sleep 1; kill -KILL $$`: errdefs.IsUnavailable,
		`read job; printf '{"opened":'; kill -KILL $$`:             errdefs.IsUnavailable,
		`read job; kill -SEGV $$`:                                  errdefs.IsInternal,
		`read job; echo '{"opened":'; sleep 60`:                    errdefs.IsInternal,
	} {
		c := &Client{Command: []string{"/bin/sh", "-c", script}}
		if _, err := c.Push(t.Context(), PushJob{Live: stands{}}, nil); !is(err) ||
			errno.SaysKilled(err) != errdefs.IsUnavailable(err) {
			t.Errorf("%s: %v", script, err)
		}
	}
}

// A worker that cannot be started for want of descriptors says so.
func TestWorkerThatCannotStart(t *testing.T) {
	fdtest.Exhaust(t, 1)
	if _, err := client().Open(t.Context(), OpenJob{}); errno.Resolve(err) != errdefs.ErrResourceExhausted {
		t.Errorf("got %v", err)
	}
}

// A worker that has said why it ends, and hears no more, is believed: what it cannot be told
// any more is no error of its own.
func TestErrorOfAWorkerThatHearsNoMore(t *testing.T) {
	said, err := json.Marshal(
		line{Error: newRemoteError(fmt.Errorf("the registry is full: %w", errdefs.ErrResourceExhausted))})
	if err != nil {
		t.Fatal(err)
	}
	for name, script := range map[string]string{
		"in the pause": `read job; exec 0<&-; echo '{"pause":true}'; echo "$LINE"; exit 1`,
		"at once":      `exec 0<&-; echo "$LINE"; exit 1`,
	} {
		c := &Client{Command: []string{"/bin/sh", "-c", script}, Env: []string{"LINE=" + string(said)}}
		_, err := c.Push(t.Context(), PushJob{Live: stands{}}, nil)
		if !errdefs.IsResourceExhausted(err) || !strings.Contains(err.Error(), "the registry is full") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// stands is a VM that does as it is told.
type stands struct{ snapshot.Live }

func (stands) Prepare(context.Context) error { return nil }

func (stands) Pause(context.Context) error { return nil }

func (stands) Save(context.Context) (json.RawMessage, error) { return nil, nil }

// Every class that an error can have comes back as itself.
func TestClassesCross(t *testing.T) {
	for name, class := range classes {
		data, err := json.Marshal(newRemoteError(fmt.Errorf("deep: %w", fmt.Errorf("x: %w", class))))
		if err != nil {
			t.Fatal(err)
		}
		var back remoteError
		if err := json.Unmarshal(data, &back); err != nil {
			t.Fatal(err)
		}
		if !errors.Is(&back, class) || back.Class != name {
			t.Errorf("%s came back as %s", name, back.Class)
		}
	}
}
