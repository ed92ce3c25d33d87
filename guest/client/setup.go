package client

import (
	"context"

	agentv1 "godwit.dev/godwit/api/agent/v1"

	"google.golang.org/protobuf/proto"
)

// chunk is how much file content one message carries; ttrpc takes 4 MiB at most.
const chunk = 1 << 20

// Setup implements agentv1.AgentService. Files may be of any size and number: what
// does not fit one message follows in Copy.
func (a *Agent) Setup(ctx context.Context, r *agentv1.SetupRequest) (*agentv1.SetupResponse, error) {
	batches := split(r.Files)
	if len(batches) > 0 {
		head := bare(r)
		head.Files = batches[0]
		batches, r = batches[1:], head
	}
	resp, err := call(ctx, a, agentv1.AgentService.Setup, r)
	if err != nil {
		return nil, err
	}
	if err := a.copyAll(ctx, "", batches); err != nil {
		return nil, err
	}
	return resp, nil
}

// split cuts files into batches of about chunk bytes each.
func split(files []*agentv1.File) [][]*agentv1.File {
	var batches [][]*agentv1.File
	var batch []*agentv1.File
	size := 0
	add := func(f *agentv1.File) {
		if n := proto.Size(f); size+n > chunk && len(batch) > 0 {
			batches, batch, size = append(batches, batch), nil, 0
		}
		batch = append(batch, f)
		size += proto.Size(f)
	}
	for _, f := range files {
		if len(f.Data) <= chunk {
			add(f)
			continue
		}
		for at := 0; at < len(f.Data); at += chunk {
			add(part(f, f.Data[at:min(at+chunk, len(f.Data))], at))
		}
	}
	if len(batch) > 0 {
		batches = append(batches, batch)
	}
	return batches
}

// part is a piece of a file; all but the first are appended.
func part(f *agentv1.File, data []byte, at int) *agentv1.File {
	return &agentv1.File{
		Path: f.Path, Mode: f.Mode, Uid: f.Uid, Gid: f.Gid, Data: data,
		Append: f.Append || at > 0, Offset: f.Offset + uint64(at), MtimeUnixNano: f.MtimeUnixNano, Keep: f.Keep,
	}
}
