package shim

import (
	"context"
	"crypto/sha256"
	"fmt"
	"math"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"

	agentv1 "godwit.dev/godwit/api/agent/v1"
	"godwit.dev/godwit/shim/bundle"
)

// sync makes a volume of the guest hold what the directory of the host holds now. A guest that was told so before is
// not asked again.
//
// A shim before this one, here or on another node, may have told the guest. A guest that has a revision takes no other
// one of the same number, and cannot say so. So each shim counts from the nanosecond of its first revision on. Where
// the clock of that shim was ahead, the guest's answer says how far it has counted.
func (p *pod) sync(ctx context.Context, agent agentv1.AgentService, volume, source string) error {
	p.syncing.Lock()
	defer p.syncing.Unlock()
	files, err := bundle.Volume{Source: source}.Files()
	if err != nil {
		return err
	}
	if pod := p.vm.spec().Pod; pod.Volume(volume).Mapped {
		bundle.Owned(files, pod.Users)
	}
	r := &agentv1.SyncVolumeRequest{Volume: volume, Entries: files}
	data, err := proto.MarshalOptions{Deterministic: true}.Marshal(r)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(data)
	if p.told[volume] == sum {
		return nil
	}
	if p.revision == 0 {
		p.revision = uint64(time.Now().UnixNano())
	}
	r.Last = true
	for range revisionTurns {
		p.revision++
		r.Revision = p.revision
		held, err := agent.SyncVolume(ctx, r)
		switch is := held.GetRevision(); {
		case err != nil:
			return err
		case is <= r.Revision:
			p.told[volume] = sum
			return nil
		case is > math.MaxInt64: // no clock says so, and the next one would be 0 some time
			return fmt.Errorf("volume %s: the guest has counted to %d: %w", volume, is, errdefs.ErrDataLoss)
		default:
			p.revision = is
		}
	}
	return fmt.Errorf("volume %s: the guest has always a later revision than it is told, now %d: %w", volume, p.revision,
		errdefs.ErrDataLoss)
}

// revisionTurns are those that a guest takes that tells the truth: one, and another one after a clock that was ahead.
const revisionTurns = 2
