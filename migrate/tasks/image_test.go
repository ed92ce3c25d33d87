package tasks

import (
	"context"
	"fmt"
	"testing"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"
	"google.golang.org/protobuf/types/known/anypb"
)

// oneContainer is containerd with one container.
type oneContainer struct {
	containers.Store
	has containers.Container
	err error
}

func (c *oneContainer) Get(context.Context, string) (containers.Container, error) {
	return c.has, c.err
}

// TestImageOfAContainer: what CRI keeps of a container says which image it was made of. What cannot be read is an
// error.
func TestImageOfAContainer(t *testing.T) {
	const id = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
	metadata := func(text string) containers.Container {
		return containers.Container{Extensions: map[string]typeurl.Any{
			"io.cri-containerd.container.metadata": &anypb.Any{Value: []byte(text)}}}
	}
	for what, tt := range map[string]struct {
		has  oneContainer
		want string
		is   func(error) bool
	}{
		"one of CRI": {oneContainer{has: metadata(fmt.Sprintf(
			`{"Version":"v1","Metadata":{"ID":"c","Config":{"image":{"image":"a:1"}},"ImageRef":%q}}`, id))}, id, nil},
		"without an image":         {oneContainer{has: metadata(`{"Version":"v1"}`)}, "", errdefs.IsDataLoss},
		"with a name":              {oneContainer{has: metadata(`{"Metadata":{"ImageRef":"a:1"}}`)}, "", errdefs.IsDataLoss},
		"that cannot be read":      {oneContainer{has: metadata(`{`)}, "", errdefs.IsDataLoss},
		"that CRI knows not of":    {oneContainer{}, "", errdefs.IsNotFound},
		"of a silent containerd":   {oneContainer{err: errdefs.ErrUnavailable}, "", errdefs.IsUnavailable},
		"that containerd has lost": {oneContainer{err: errdefs.ErrNotFound}, "", errdefs.IsNotFound},
	} {
		client, err := containerd.New("", containerd.WithServices(containerd.WithContainerStore(&tt.has)))
		if err != nil {
			t.Fatal(err)
		}
		got, err := (&Client{containerd: client}).ImageOf(t.Context(), "k8s.io", "c")
		if got != tt.want || (err == nil) != (tt.is == nil) || err != nil && !tt.is(err) {
			t.Errorf("a container %s: %q, %v", what, got, err)
		}
	}
}
