package record

import (
	"testing"

	"github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"
	"google.golang.org/protobuf/types/known/anypb"
)

// An order comes out as it went in, and containerd sees nothing but runc's options.
func TestOrderTravels(t *testing.T) {
	intent := Intent{Operation: "op", Attempt: 3, Digest: "sha256:12"}
	any, err := Order("/etc/godwit/config.toml", intent)
	if err != nil {
		t.Fatal(err)
	}
	v, err := typeurl.UnmarshalAny(any)
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := v.(*options.Options); !ok {
		t.Fatalf("containerd reads %T and refuses it", v)
	}
	order, err := OrderOf(any)
	if err != nil {
		t.Fatal(err)
	}
	got := Intent{Operation: order.GetOperation(), Attempt: order.GetAttempt(), Digest: order.GetDigest()}
	if got != intent || order.GetConfigPath() != "/etc/godwit/config.toml" {
		t.Errorf("order %+v", order)
	}
}

func TestOrderOfOthers(t *testing.T) {
	runc, err := anypb.New(&options.Options{BinaryName: "runc", Root: "/run"})
	if err != nil {
		t.Fatal(err)
	}
	for name, any := range map[string]*anypb.Any{"none": nil, "runc's": runc, "foreign": {TypeUrl: "other.Options",
		Value: []byte{1}}} {
		if order, err := OrderOf(any); order != nil || err != nil {
			t.Errorf("%s: %v, %v", name, order, err)
		}
	}
	broken, err := Order("", Intent{Operation: "op"})
	if err != nil {
		t.Fatal(err)
	}
	broken.Value = broken.Value[:len(broken.Value)-1]
	if _, err := OrderOf(broken); !errdefs.IsInvalidArgument(err) {
		t.Errorf("cut off: %v", err)
	}
}
