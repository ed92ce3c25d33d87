package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/containerd/errdefs"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"godwit.dev/godwit/snapshot/format"
	"godwit.dev/godwit/snapshot/store"
)

// VerifyOptions of Verify. The zero value will do.
type VerifyOptions struct {
	Memory   int64 // of pack buffers; default 256 MiB
	Progress func(Progress)
}

// Verdict is what Verify found. A snapshot without Bad parts can be restored.
type Verdict struct {
	Packs  int    `json:"packs"`
	Frames int    `json:"frames"` // decoded
	Bytes  uint64 `json:"bytes"`  // read
	Bad    []Bad  `json:"bad,omitempty"`
	// More is how many bad parts there are beyond those named.
	More int `json:"more,omitempty"`
}

// Bad is a part that a restore would refuse.
type Bad struct {
	Part   string `json:"part"` // "pack sha256:...", "frame 17 at 4096 of pack sha256:...", "state sha256:..."
	Reason string `json:"reason"`
}

// maxBad is how many bad parts a verdict names.
const maxBad = 100

// Verify reads all that the snapshot consists of: device state and read-only disks by their digests, and each pack
// by its own and by that of every frame in it, which is decoded. A part that is wrong or missing is in the verdict.
// An error means that there is no verdict, because the store did not let everything be read.
func (s *Snapshot) Verify(ctx context.Context, o VerifyOptions) (Verdict, error) {
	if o.Memory <= 0 {
		o.Memory = 256 << 20
	}
	if o.Progress == nil {
		o.Progress = func(Progress) {}
	}
	v := &verifier{Snapshot: s, notify: o.Progress, total: s.parts.size()}
	v.verdict.Packs = len(s.parts.packs)
	if err := v.run(ctx, max(1, min(runtime.GOMAXPROCS(0), int(o.Memory/format.MaxPack)))); err != nil {
		return Verdict{}, fmt.Errorf("verify snapshot %s: %w", s.Digest, err)
	}
	slices.SortFunc(v.verdict.Bad, func(a, b Bad) int { return strings.Compare(a.Part, b.Part) })
	return v.verdict, nil
}

// verifier is one run of Verify.
type verifier struct {
	*Snapshot
	notify func(Progress)
	total  uint64
	read   atomic.Uint64

	mu      sync.Mutex
	verdict Verdict
}

func (v *verifier) run(ctx context.Context, workers int) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(workers)
	whole := map[string][]v1.Descriptor{"state": {v.parts.state}, "disk": v.parts.disks}
	for what, parts := range whole {
		for _, d := range parts {
			g.Go(func() error { return v.blob(ctx, what, d) })
		}
	}
	for i := range v.parts.packs {
		g.Go(func() error { return v.pack(ctx, i) })
	}
	err := g.Wait()
	v.verdict.Bytes = v.read.Load()
	return err
}

// blob is right or wrong as a whole.
func (v *verifier) blob(ctx context.Context, what string, d v1.Descriptor) error {
	err := store.Copy(ctx, v.store, d.Digest, d.Size, io.Discard)
	v.step(d.Size)
	return v.judge(what+" "+d.Digest.String(), store.Lost(what, d, err), err)
}

// pack is read whole even if its digest is wrong: its frames say where.
func (v *verifier) pack(ctx context.Context, i int) error {
	d := v.parts.packs[i]
	name := "pack " + d.Digest.String()
	data, err := v.fetch(ctx, d)
	v.step(d.Size)
	if err != nil && (data == nil || !errdefs.IsDataLoss(err)) {
		return v.judge(name, store.Lost("pack", d, err), err)
	}
	named := v.frames(i, data, name)
	if err != nil && !named { // between the frames, or after them
		return v.judge(name, err, err)
	}
	return nil
}

// fetch returns what the store has under the pack's digest, with DataLoss if it is not
// the pack.
func (v *verifier) fetch(ctx context.Context, d v1.Descriptor) ([]byte, error) {
	data, err := store.ReadRetried(ctx, v.store, d.Digest, d.Size)
	if !errdefs.IsDataLoss(err) {
		return data, err
	}
	body, e := v.store.Get(ctx, store.Blob(d.Digest))
	if e != nil {
		return nil, e
	}
	defer body.Close()
	data = make([]byte, d.Size)
	n, e := io.ReadFull(body, data)
	if e != nil && !errors.Is(e, io.EOF) && !errors.Is(e, io.ErrUnexpectedEOF) {
		return nil, fmt.Errorf("read pack %s: %w: %w", d.Digest, e, errdefs.ErrUnavailable)
	}
	return data[:n], err
}

// frames decodes those of a pack, and reports whether it named one.
func (v *verifier) frames(pack int, data []byte, name string) (named bool) {
	coder := format.Coder{Key: v.keys[pack]}
	defer coder.Close()
	first, end := v.index.PackFrames(pack)
	for i := first; i < end; i++ {
		f := &v.index.Frames[i]
		var err error
		if at := uint64(f.Offset); at+uint64(f.Stored) > uint64(len(data)) {
			err = fmt.Errorf("the pack ends at %d: %w", len(data), errdefs.ErrDataLoss)
		} else {
			_, err = coder.Decode(f, data[at:at+uint64(f.Stored)])
		}
		if err != nil {
			named = true
			v.bad(fmt.Sprintf("frame %d at %d of %s", i-first, f.Offset, name), err)
		}
	}
	v.mu.Lock()
	v.verdict.Frames += end - first
	v.mu.Unlock()
	return named
}

// judge keeps what is wrong with the snapshot apart from what is wrong with the store.
func (v *verifier) judge(part string, reason, err error) error {
	switch {
	case err == nil:
		return nil
	case errdefs.IsDataLoss(reason) || errdefs.IsInvalidArgument(err):
		v.bad(part, reason)
		return nil
	default:
		return reason
	}
}

func (v *verifier) bad(part string, reason error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.verdict.Bad) == maxBad {
		v.verdict.More++
		return
	}
	v.verdict.Bad = append(v.verdict.Bad, Bad{Part: part, Reason: reason.Error()})
}

func (v *verifier) step(size int64) {
	v.notify(Progress{Step: "verify", Done: v.read.Add(uint64(size)), Total: v.total})
}
