package shim

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/spec"
)

// imageBound is how long godwitd may take to say which image a container has.
const imageBound = 2 * time.Second

// imageAnswer is the digest of the configuration of a container's image. CRI alone knows it: the bundle has the name.
type imageAnswer struct {
	digest string
	err    error
}

func (c *memberCreation) askImage(ctx context.Context) (a imageAnswer) {
	vm := c.vm
	if vm.host.Orders == nil {
		return imageAnswer{err: fmt.Errorf("this node has no godwitd: %w", errdefs.ErrUnavailable)}
	}
	ctx, cancel := context.WithTimeout(ctx, imageBound)
	defer cancel()
	a.digest, a.err = vm.host.Orders.Image(ctx, vm.namespace, c.task.id)
	return a
}

// learnImage asks which image a new container has, for the wake that may come. The function that it returns waits for
// the answer. Without one the container starts all the same, and its wake compares names.
func (c *memberCreation) learnImage(ctx context.Context) func() string {
	if c.vm.spec().Annotations[spec.AnnotationVM] == "" { // such a pod stays
		return func() string { return "" }
	}
	answer := make(chan imageAnswer, 1)
	go func() { answer <- c.askImage(ctx) }()
	return func() string {
		a := <-answer
		if a.err != nil {
			c.vm.log.Warn("learn image of container: a wake will compare its name only", "task", c.task.id, "error", a.err)
		}
		return a.digest
	}
}

// sameImage refuses a container whose image is not that of m. Names may differ, and one name may stand for another
// image by now. They are compared where the snapshot has nothing better.
func (c *memberCreation) sameImage(m *spec.Member, here imageAnswer) error {
	is, was := c.bundle.Member.Container.Image, m.Image
	switch {
	case m.ImageID == "" && (is == "" || was == "" || is == was):
		return nil
	case m.ImageID == "":
		return fmt.Errorf("its image is %s, the snapshot has %s: make it as it was: %w", is, was,
			errdefs.ErrFailedPrecondition)
	case here.err != nil:
		return fmt.Errorf("ask godwitd which image it has: start godwitd, and start the container again: %w", here.err)
	case here.digest == m.ImageID:
		return nil
	}
	return fmt.Errorf("its image is %s with id %s, the snapshot has %s with id %s: pull or tag the image with that id, "+
		"and make the container of it: %w", is, here.digest, was, m.ImageID, errdefs.ErrFailedPrecondition)
}
