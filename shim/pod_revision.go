package shim

import (
	"context"
	"crypto/sha256"
	"fmt"
	"path"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	agentv1 "godwit.dev/godwit/api/agent/v1"
	"godwit.dev/godwit/shim/bundle"
)

// sync makes a volume of the guest hold what the directory of the host holds now. A guest that was told so before is
// not asked again.
func (p *pod) sync(ctx context.Context, agent Agent, volume, source string) error {
	p.syncing.Lock()
	defer p.syncing.Unlock()
	r, err := contentOf(ctx, source)
	if err != nil {
		return err
	}
	r.Volume = volume
	data, err := proto.MarshalOptions{Deterministic: true}.Marshal(r)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(data)
	if p.told[volume] == sum {
		return nil
	}
	r.Last = true
	for {
		p.revision++
		r.Revision = p.revision
		held, err := agent.SyncVolume(ctx, r)
		if err != nil {
			return err
		}
		if held.GetRevision() <= r.Revision {
			p.told[volume] = sum
			return nil
		}
		p.revision = held.GetRevision() // of a shim before this one
	}
}

// dataLink is the link by which a kubelet changes all files of a volume at once: its AtomicWriter names it.
const dataLink = "/..data"

// contentOf reads a directory of the host. Unavailable: it has changed meanwhile.
func contentOf(ctx context.Context, source string) (*agentv1.SyncVolumeRequest, error) {
	r := &agentv1.SyncVolumeRequest{}
	there := map[string]bool{}
	for files, err := range (bundle.Copies{{Source: source, Destination: "/"}}).Requests(ctx) {
		if err != nil {
			return nil, err
		}
		for _, f := range files.Files {
			f.MtimeUnixNano = 0 // of no use, and of a directory it changes with what is passing through
			there[f.Path] = true
		}
		r.Entries = append(r.Entries, files.Files...)
	}
	for _, f := range r.Entries {
		if f.Path == dataLink && f.Mode&unix.S_IFMT == unix.S_IFLNK && !there[path.Join("/", f.Link)] {
			return nil, fmt.Errorf("%s: it has changed while it was read: %w", source, errdefs.ErrUnavailable)
		}
	}
	return r, nil
}
