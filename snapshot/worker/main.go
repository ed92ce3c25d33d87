package worker

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sync/errgroup"

	"godwit.dev/godwit/internal/bpf"
	"godwit.dev/godwit/snapshot"
	"godwit.dev/godwit/snapshot/cache"
	"godwit.dev/godwit/snapshot/precopy"
	"godwit.dev/godwit/snapshot/store"
	"godwit.dev/godwit/snapshot/track"
)

// maxJob bounds the line on stdin: an OCI spec of some megabytes would be one of
// thousands of mounts.
const maxJob = 16 << 20

const gcPercent = 50

// Main is the process. It reads one job from in, answers on out and returns the exit
// status: 0 if the job succeeded.
func Main(ctx context.Context, in io.Reader, out io.Writer) int {
	// Buffers of packs come and go: without a limit the collector would let twice of
	// them stand before it looks.
	debug.SetGCPercent(gcPercent)
	w := &answers{enc: json.NewEncoder(out)}
	r := bufio.NewReaderSize(in, 64<<10)
	j, err := readJob(r)
	if err != nil {
		w.write(line{Error: newRemoteError(err)})
		return 1
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	replies := make(chan reply, 2)
	go func() {
		dec := json.NewDecoder(r)
		for {
			var p reply
			if err := dec.Decode(&p); err != nil {
				break
			}
			select {
			case replies <- p:
			default: // not asked
			}
		}
		// Nothing more comes: the one who asked is gone.
		cancel(fmt.Errorf("worker: its parent is gone: %w", context.Canceled))
	}()
	j.meet(&remote{w, replies})
	kept := j.keeper(w)
	answer, err := j.run(ctx, kept, w)
	answer.Cache = kept.Usage()
	if err != nil {
		w.write(line{Error: newRemoteError(err), Cache: answer.Cache})
		return 1
	}
	w.write(answer)
	return 0
}

func readJob(r *bufio.Reader) (*job, error) {
	var data []byte
	for {
		part, err := r.ReadSlice('\n')
		data = append(data, part...)
		if err == nil {
			break
		}
		if err != bufio.ErrBufferFull || len(data) > maxJob {
			return nil, fmt.Errorf("worker: read job: %w: %w", err, errdefs.ErrInvalidArgument)
		}
	}
	j := new(job)
	if err := json.Unmarshal(data, j); err != nil {
		return nil, fmt.Errorf("worker: read job: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	return j, nil
}

// meet gives the job the VM that is at the other end.
func (j *job) meet(r *remote) {
	switch {
	case j.Push != nil && j.Push.Running:
		j.Push.Live = r
	case j.Send != nil:
		j.Send.Live = r
	case j.Receive != nil:
		j.Receive.Arrival = r
	case j.LazyFill != nil:
		l := j.LazyFill
		l.RAM, l.Whole = func(ctx context.Context) (*WaitingRAM, error) { return r.ram(ctx, l.Socket) }, r.whole
	}
}

func (j *job) run(ctx context.Context, kept *cache.Dir, out *answers) (line, error) {
	notify := out.progress
	switch {
	case j.Push != nil:
		return j.Push.run(ctx, kept, notify)
	case j.Open != nil:
		return j.Open.run(ctx, kept)
	case j.Fill != nil:
		return j.Fill.run(ctx, kept, notify)
	case j.Send != nil:
		return j.Send.run(ctx, out.write, notify)
	case j.Receive != nil:
		return j.Receive.run(ctx, notify)
	case j.Verify != nil:
		return j.Verify.run(ctx, notify)
	case j.Diff != nil:
		return j.Diff.run(ctx)
	case j.Copy != nil:
		return j.Copy.run(ctx, notify)
	case j.Golden != nil:
		return j.Golden.run(ctx, kept)
	case j.LazyFill != nil:
		return j.LazyFill.run(ctx, kept, notify)
	}
	return line{}, fmt.Errorf("worker: job without a kind: %w", errdefs.ErrInvalidArgument)
}

func (j *PushJob) run(ctx context.Context, kept *cache.Dir, notify func(Progress)) (line, error) {
	st, err := store.Open(j.Store)
	if err != nil {
		return line{}, err
	}
	keys, err := j.Keys.Load(j.Store.Keys)
	if err != nil {
		return line{}, err
	}
	if err := store.Claim(st); err != nil {
		return line{}, err
	}
	golden, ungolden := j.golden(&keys)
	spare := openCores().Spare
	if err := confine(kept, append(golden.configs, j.Store)...); err != nil {
		return line{}, err
	}
	o := snapshot.Options{
		Golden: golden.table, Source: golden.source, Make: j.Make,
		Keys: keys,
		Ref:  j.Ref, Tag: j.Tag, Spec: j.Spec, Facts: j.Facts, Resume: j.Resume,
		Memory: j.Memory, Concurrency: j.Concurrency, Spare: spare, Live: j.Live, Budget: j.Budget, Still: j.Next == nil,
		Next: osFile(j.Next), Finished: j.finished(), Repository: j.Store.Repository,
		Progress: func(p snapshot.Progress) { notify(Progress{Progress: p}) },
	}
	var going *track.Going // nil: no notes are kept
	o.Captured = func() {
		debug.SetGCPercent(gcPercent)
		notify(Progress{Captured: time.Now(), Noting: going.Noting()})
	}
	if kept != nil {
		o.Keeper = kept
	}
	var untracked, orphaned string
	o.Tracker, going, untracked = j.tracker()
	if j.Table != nil {
		// A table that a crash left unfinished costs a full push, no more; one that is broken
		// would fail each push of the VM.
		o.Parent, err = snapshot.OpenTable(j.Table.File)
		switch {
		case errdefs.IsDataLoss(err):
			orphaned = err.Error()
		case err != nil && !errdefs.IsNotFound(err):
			return line{}, err
		}
	}
	src := source(j.State, j.Spaces, j.Disks)
	golden.disks(&src)
	receipt, err := snapshot.Push(ctx, st, src, o)
	if untracked != "" {
		receipt.Untracked = untracked
	}
	receipt.Ungolden, receipt.Orphaned = ungolden, orphaned
	return line{Receipt: &receipt}, err
}

// finished is what a push before this one has left. Where the notes go on from a wake or a checkpoint there was no
// other push since. A page that is not in the notes is what the page table says, no other.
func (j *PushJob) finished() *os.File {
	if f := osFile(j.Finished); f == nil || j.Tracking == nil || !j.Tracking.Armed || f.Truncate(0) == nil {
		return f
	}
	return nil
}

func source(state *File, spaces []Space, disks []Disk) snapshot.Source {
	src := snapshot.Source{State: osFile(state)}
	for _, s := range spaces {
		src.Spaces = append(src.Spaces, snapshot.Space{Name: s.Name, Disk: s.Disk, File: osFile(s.File),
			Clone: osFile(s.Clone), Notes: s.notes()})
	}
	for _, d := range disks {
		src.Disks = append(src.Disks, snapshot.Disk{ID: d.ID, Digest: d.Digest, File: osFile(d.File), From: d.From})
	}
	return src
}

// notes are nil where there are none: all of a disk is read then.
func (s Space) notes() precopy.WriteNotes {
	if s.Notes == nil {
		return nil
	}
	info, err := s.File.Stat()
	if err != nil {
		return nil
	}
	n, err := bpf.OpenNoted(s.Notes.File, info.Size())
	if err != nil {
		return nil
	}
	return n
}

// tracker is of the first space, RAM, and nil where there is none; the text says why, and costs a longer pause, no
// more.
func (t *Tracking) tracker(spaces []Space) (track.Tracker, string) {
	if t == nil || len(spaces) == 0 {
		return nil, ""
	}
	open := track.New
	if t.Armed {
		open = track.Continue
	}
	tracker, err := open(t.Way, t.Regions, track.Files{Pagemap: osFile(t.Pagemap), Fault: osFile(t.Fault),
		Clear: osFile(t.Clear), Vmstat: osFile(t.Vmstat), RAM: osFile(spaces[0].File)})
	if err != nil {
		return nil, err.Error()
	}
	return tracker, ""
}

// tracker is Tracking's. Where the VM goes on with a page table, its notes go on, too: going, or nil.
func (j *PushJob) tracker() (_ snapshot.Tracker, going *track.Going, untracked string) {
	tracker, untracked := j.Tracking.tracker(j.Spaces)
	if tracker != nil && j.Next != nil {
		going = track.GoOn(j.Tracking.Way, tracker)
	}
	if going != nil {
		return going, going, untracked
	}
	return tracker, nil, untracked
}

func (j *OpenJob) run(ctx context.Context, kept *cache.Dir) (line, error) {
	s, err := open(ctx, Place{Store: j.Store, Keys: j.Keys, Digest: j.Digest}, j.Want, kept)
	if err != nil {
		return line{}, err
	}
	o := &Opened{Config: s.Config}
	o.Stored, o.Pages = s.Bytes()
	o.RAM = s.RAM()
	return line{Opened: o}, nil
}

func (j *VerifyJob) run(ctx context.Context, notify func(Progress)) (line, error) {
	s, err := open(ctx, Place{Store: j.Store, Keys: j.Keys, Digest: j.Digest}, nil, nil)
	if err != nil {
		return line{}, err
	}
	verdict, err := s.Verify(ctx, snapshot.VerifyOptions{
		Memory: j.Memory, Progress: func(p snapshot.Progress) { notify(Progress{Progress: p}) },
	})
	return line{Verdict: &verdict}, err
}

func (j *FillJob) run(ctx context.Context, kept *cache.Dir, notify func(Progress)) (line, error) {
	s, err := open(ctx, Place{Store: j.Store, Keys: j.Keys, Digest: j.Digest}, j.Want, kept)
	if err != nil {
		return line{}, err
	}
	// A disk comes in one stream, and so does the state: the pages need not wait for them.
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return j.rest(ctx, s) })
	if j.Lazy {
		g.Go(func() error { return s.Check(ctx) })
	}
	g.Go(func() error {
		files := map[string]*os.File{}
		for _, sp := range j.Spaces {
			files[sp.Name] = osFile(sp.File)
		}
		return s.Fill(ctx, files, snapshot.FillOptions{
			Memory: j.Memory, Concurrency: j.Concurrency, Table: osFile(j.Table), Repository: j.Store.Repository,
			Progress: func(p snapshot.Progress) { notify(Progress{Progress: p}) },
		})
	})
	return line{Filled: &struct{}{}}, g.Wait()
}

// rest is what a restore needs in addition to pages.
func (j *FillJob) rest(ctx context.Context, s *snapshot.Snapshot) error {
	if j.State != nil {
		if err := s.State(ctx, io.NewOffsetWriter(j.State, 0)); err != nil {
			return err
		}
	}
	for _, d := range j.Disks {
		if err := s.Disk(ctx, d.Digest, d.File); err != nil {
			return err
		}
	}
	return nil
}

// remote is the VM at the other end.
type remote struct {
	out     *answers
	replies <-chan reply
}

func (r *remote) Prepare(ctx context.Context) error {
	r.out.write(line{Prepare: true})
	runtime.GC() // for Pause
	_, err := r.next(ctx)
	return err
}

func (r *remote) Pause(ctx context.Context) error {
	// The collector would compete with the last pass, and has nothing to gain in it.
	debug.SetGCPercent(-1)
	r.out.write(line{Pause: true})
	_, err := r.next(ctx)
	return err
}

func (r *remote) Save(ctx context.Context) (json.RawMessage, error) {
	p, err := r.next(ctx)
	return p.Resume, err
}

func (r *remote) next(ctx context.Context) (reply, error) {
	select {
	case p := <-r.replies:
		return p, nil
	case <-ctx.Done():
		return reply{}, context.Cause(ctx)
	}
}

func osFile(f *File) *os.File {
	if f == nil {
		return nil
	}
	return f.File
}

// answers writes lines; progress of a step at most ten times a second.
type answers struct {
	mu   sync.Mutex
	enc  *json.Encoder
	last time.Time

	waiting string // of the last one
}

func (a *answers) write(l line) {
	a.mu.Lock()
	defer a.mu.Unlock()
	_ = a.enc.Encode(l) // it may go unread: stdin ends as well
}

// progressInterval is the least between two words about the same step.
const progressInterval = 100 * time.Millisecond

func (a *answers) progress(p Progress) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if p.Settled { // somebody waits for it
		_ = a.enc.Encode(line{Progress: &p})
		return
	}
	if now := time.Now(); p.Captured.IsZero() && p.Step != "commit" && p.Waiting == a.waiting {
		if now.Sub(a.last) < progressInterval {
			return
		}
		a.last = now
	}
	a.waiting = p.Waiting
	_ = a.enc.Encode(line{Progress: &p})
}
