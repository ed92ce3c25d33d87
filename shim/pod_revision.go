package shim

import (
	"context"
	"crypto/sha256"

	"google.golang.org/protobuf/proto"

	agentv1 "godwit.dev/godwit/api/agent/v1"
	"godwit.dev/godwit/shim/bundle"
)

// sync makes a volume of the guest hold what the directory of the host holds now. A guest that was told so before is
// not asked again.
func (p *pod) sync(ctx context.Context, agent Agent, volume, source string) error {
	p.syncing.Lock()
	defer p.syncing.Unlock()
	files, err := bundle.Volume{Source: source}.Files()
	if err != nil {
		return err
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
