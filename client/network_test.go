package client

import (
	"context"
	"errors"
	"slices"
	"testing"

	gocni "github.com/containerd/go-cni"

	"godwit.dev/godwit/api/spec"
)

// plugins notes its calls, with the number of options. It refuses what it is to refuse.
type plugins struct {
	gocni.CNI
	refuses func(options int) bool
	calls   []string
}

func (p *plugins) Setup(_ context.Context, _, _ string, opts ...gocni.NamespaceOpts) (*gocni.Result, error) {
	p.calls = append(p.calls, "setup"+string(rune('0'+len(opts))))
	if p.refuses(len(opts)) {
		return nil, errors.New("the address is taken")
	}
	return &gocni.Result{}, nil
}

func (p *plugins) Remove(context.Context, string, string, ...gocni.NamespaceOpts) error {
	p.calls = append(p.calls, "remove")
	return nil
}

// The hook asks for what the guest has, and takes another address where that is not to be had. What a network that
// cannot be made has left is removed.
func TestHookAsksForWhatTheGuestHas(t *testing.T) {
	moved := map[string]string{spec.AnnotationAddresses: "10.0.0.2,fd00::2", spec.AnnotationMAC: "02:00:00:00:00:01"}
	for _, c := range []struct {
		name        string
		annotations map[string]string
		refuses     func(options int) bool
		want        []string
		fails       bool
	}{
		{"a boot", nil, func(int) bool { return false }, []string{"setup0"}, false},
		{"a move", moved, func(int) bool { return false }, []string{"setup2"}, false},
		{"a taken address", moved, func(n int) bool { return n > 0 }, []string{"setup2", "remove", "setup0"}, false},
		{"no network", moved, func(int) bool { return true }, []string{"setup2", "remove", "setup0", "remove"}, true},
		{"no network of a boot", nil, func(int) bool { return true }, []string{"setup0", "remove"}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := &plugins{refuses: c.refuses}
			err := setUp(t.Context(), p, "id", "/proc/1/ns/net", nil, had(c.annotations))
			if !slices.Equal(p.calls, c.want) || (err != nil) != c.fails {
				t.Errorf("calls %v, error %v; want %v, an error: %v", p.calls, err, c.want, c.fails)
			}
		})
	}
}
