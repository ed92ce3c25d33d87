package shim

import (
	"context"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// imaged is a daemon whose containerd has made all containers of one image.
type imaged struct {
	Orders
	digest string
	err    error
}

func (i *imaged) Image(context.Context, string, string) (string, error) { return i.digest, i.err }

const (
	firstImage  = "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	secondImage = "sha256:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
)

// TestPodWakesWithItsImages: a container whose image has changed under its name is refused, and so is one of which
// nothing is known. The pod sleeps on, and wakes with the image that it had, by whatever name.
func TestPodWakesWithItsImages(t *testing.T) {
	images := &imaged{digest: firstImage}
	w := newWorld(t)
	w.orders = images
	asleep(w, true)
	w.must("wake", w.armed())
	refused := func(what string, is func(error) bool, names ...string) {
		t.Helper()
		err := errgrpc.ToNative(w.createMember("web", "alpine"))
		for _, name := range names {
			if !is(err) || !strings.Contains(err.Error(), name) {
				t.Errorf("%s: %v, without %q", what, err, name)
			}
		}
	}
	images.digest = secondImage
	refused("another image of that name", errdefs.IsFailedPrecondition, firstImage, secondImage, "web", "alpine")
	images.err = errdefs.ErrUnavailable
	refused("an image of which nothing is known", errdefs.IsUnavailable, "godwitd")
	w.endTasks("after it was refused", "vm")
	w.nothingLeft()
	if got := w.records.rec.GetOwner(); got.GetDigest() == "" {
		t.Errorf("a pod that did not wake has owner %v", got)
	}
	w.restart()
	images.digest, images.err = firstImage, nil
	w.must("wake again", w.armed("web"))
	other := w.edit(w.memberRequest("log", "alpine"), func(s *specs.Spec) {
		s.Annotations[criNote+"image-name"] = "alpine@" + firstImage
	})
	_, err := w.service.Create(ctxNS(t), other)
	w.must("create log by another name of its image", err)
	w.must("start log", w.startTask("log"))
	if vm, err := w.service.current(); err != nil || !eventually(func() bool { return vm.inState(Running) }) {
		t.Errorf("the pod does not run: %v", err)
	}
}

// TestImageThatWasNotLearnt: a container starts also if godwitd does not say which image it has. A wake then compares
// names.
func TestImageThatWasNotLearnt(t *testing.T) {
	images := &imaged{err: errdefs.ErrUnavailable}
	w := newWorld(t)
	w.orders = images
	asleep(w, true)
	images.digest, images.err = secondImage, nil
	w.must("wake", w.armed("web", "log"))
	vm, err := w.service.current()
	w.must("find VM", err)
	if id := vm.spec().Pod.Member("c2").ImageID; id != "" {
		t.Errorf("what runs is said to be image %s, by what a tag stands for today", id)
	}
}
