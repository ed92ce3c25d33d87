package tasks

import (
	"context"
	"errors"
	"testing"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/containers"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// callees are the containers that answer to a name.
type callees struct {
	containers.Store
	all   []containers.Container
	fails error
}

func (c *callees) List(context.Context, ...string) ([]containers.Container, error) {
	return c.all, c.fails
}

// A VM that comes has its name here, unless another container has it. Nothing that is wrong with the name fails its
// arrival: it is called by its id then.
func TestNameOfAnArrival(t *testing.T) {
	vm := &nodev1.VM{Namespace: "default", Id: "vm"}
	says := func(name string, err error) func(context.Context, *nodev1.VM) (string, error) {
		return func(context.Context, *nodev1.VM) (string, error) { return name, err }
	}
	other, own := containers.Container{ID: "other"}, containers.Container{ID: "vm"}
	for what, tt := range map[string]struct {
		called func(context.Context, *nodev1.VM) (string, error)
		all    []containers.Container
		fails  error
		want   string
	}{
		"free":                {says("web", nil), nil, nil, "web"},
		"its own":             {says("web", nil), []containers.Container{own}, nil, "web"},
		"another has it":      {says("web", nil), []containers.Container{own, other}, nil, ""},
		"none":                {says("", nil), nil, nil, ""},
		"no name":             {says("../../etc", nil), nil, nil, ""},
		"a filter":            {says(`x" || id~=".*`, nil), nil, nil, ""},
		"no record answers":   {says("", errors.New("away")), nil, nil, ""},
		"containerd is away":  {says("web", nil), nil, errors.New("away"), ""},
		"a node without them": {nil, nil, nil, ""},
	} {
		client, err := containerd.New("", containerd.WithServices(
			containerd.WithContainerStore(&callees{all: tt.all, fails: tt.fails})))
		if err != nil {
			t.Fatal(err)
		}
		c := &Client{containerd: client, Called: tt.called}
		if got := c.name(t.Context(), vm); got != tt.want {
			t.Errorf("%s: %q, want %q", what, got, tt.want)
		}
	}
}

// A container that the VM has left here before gets the name of now. nerdctl's own keeps it, and so does any where the
// record knows no name.
func TestContainerOfBeforeIsRenamed(t *testing.T) {
	for what, tt := range map[string]struct {
		labels map[string]string
		called string
		want   string
	}{
		"renamed elsewhere": {map[string]string{labelName: "old"}, "new", "new"},
		"not known":         {map[string]string{labelName: "old"}, "", "old"},
		"nerdctl's":         {map[string]string{labelName: "old", labelNerdctl: "/x"}, "new", "old"},
		"without a name":    {nil, "new", "new"},
	} {
		obj := &containers.Container{Labels: tt.labels}
		if rename(obj, tt.called); obj.Labels[labelName] != tt.want {
			t.Errorf("%s: %q", what, obj.Labels[labelName])
		}
	}
}
