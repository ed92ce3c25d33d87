package client

import (
	"bytes"
	"context"
	"testing"

	agentv1 "godwit.dev/godwit/api/agent/v1"
)

// podFake notes the calls of a pod, in order.
type podFake struct {
	agentv1.AgentService
	added  []*agentv1.AddContainerRequest
	copied []*agentv1.CopyRequest
	synced []*agentv1.SyncVolumeRequest
}

func (f *podFake) AddContainer(_ context.Context,
	r *agentv1.AddContainerRequest) (*agentv1.AddContainerResponse, error) {
	f.added = append(f.added, r)
	return &agentv1.AddContainerResponse{}, nil
}

func (f *podFake) Copy(_ context.Context, r *agentv1.CopyRequest) (*agentv1.CopyResponse, error) {
	f.copied = append(f.copied, r)
	return &agentv1.CopyResponse{}, nil
}

func (f *podFake) SyncVolume(_ context.Context, r *agentv1.SyncVolumeRequest) (*agentv1.SyncVolumeResponse, error) {
	f.synced = append(f.synced, r)
	return &agentv1.SyncVolumeResponse{Revision: r.Revision}, nil
}

// overPod connects an Agent to a podFake.
func overPod(t *testing.T) (*Agent, *podFake) {
	t.Helper()
	pod := &podFake{}
	f := &fake{block: make(chan struct{})}
	pod.AgentService = f
	f.serve(t, pod)
	return f.connect(t), pod
}

// TestLargeContainer: files that do not fit one message follow, for the same container, and
// nothing else of the request is lost.
func TestLargeContainer(t *testing.T) {
	a, pod := overPod(t)
	big := bytes.Repeat([]byte("x"), 2*chunk+5)
	req := &agentv1.AddContainerRequest{
		Container: "c2", Pid: "pod", Volumes: []*agentv1.VolumeMount{{Volume: "v1", Target: "/v"}},
		Setup: &agentv1.SetupRequest{Personality: 8, Files: []*agentv1.File{{Path: "/big", Data: big, Keep: true}}},
	}
	if _, err := a.AddContainer(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	if len(pod.added) != 1 || len(pod.copied) != 2 {
		t.Fatalf("%d calls of AddContainer and %d of Copy, not 1 and 2", len(pod.added), len(pod.copied))
	}
	head := pod.added[0]
	if head.Container != "c2" || head.Pid != "pod" || len(head.Volumes) != 1 || head.Setup.Personality != 8 {
		t.Errorf("what is not a file got lost: %v", head)
	}
	files := head.Setup.Files
	for _, c := range pod.copied {
		if c.Container != "c2" {
			t.Errorf("files for container %q", c.Container)
		}
		files = append(files, c.Files...)
	}
	var got []byte
	for _, f := range files {
		if uint64(len(got)) != f.Offset || !f.Keep {
			t.Errorf("a piece at %d of %d bytes, keep %v", f.Offset, len(got), f.Keep)
		}
		got = append(got, f.Data...)
	}
	if !bytes.Equal(got, big) {
		t.Errorf("%d bytes of %d came", len(got), len(big))
	}
}

// TestLargeVolume: only the last message of a revision says so.
func TestLargeVolume(t *testing.T) {
	a, pod := overPod(t)
	entries := []*agentv1.File{
		{Path: "a", Data: make([]byte, chunk)}, {Path: "b", Data: make([]byte, chunk)}, {Path: "c"},
	}
	r, err := a.SyncVolume(t.Context(), &agentv1.SyncVolumeRequest{
		Volume: "v1", Revision: 7, Last: true, Entries: entries,
	})
	if err != nil || r.Revision != 7 {
		t.Fatalf("%v, %v", r, err)
	}
	if len(pod.synced) < 2 {
		t.Fatalf("%d messages", len(pod.synced))
	}
	for i, s := range pod.synced {
		if s.Volume != "v1" || s.Revision != 7 || s.Last != (i == len(pod.synced)-1) || len(s.Entries) == 0 ||
			s.Part != uint32(i) {
			t.Errorf("message %d: volume %q, revision %d, last %v, %d entries", i, s.Volume, s.Revision, s.Last, len(s.Entries))
		}
	}
	if _, err := a.SyncVolume(t.Context(), &agentv1.SyncVolumeRequest{Volume: "v1", Revision: 8, Last: true}); err != nil {
		t.Fatal(err)
	}
	if end := pod.synced[len(pod.synced)-1]; end.Revision != 8 || !end.Last {
		t.Errorf("an empty revision: %v", end)
	}
}
