package snapshot

import (
	"testing"

	digest "github.com/opencontainers/go-digest"
)

func TestNearest(t *testing.T) {
	vm := *imageInfo()
	with := func(do func(*GoldenInfo)) string {
		g := vm
		do(&g)
		return g.Tag()
	}
	other := with(func(g *GoldenInfo) { g.Image = digest.FromString("other") })
	kernel := with(func(g *GoldenInfo) { g.Kernel = digest.FromString("older").String() })
	larger := with(func(g *GoldenInfo) { g.Memory *= 2 })
	for _, c := range []struct {
		tags []string
		want string
	}{
		{nil, ""},
		{[]string{other, "latest", "rights-x", "p1-op"}, ""},
		{[]string{other, kernel}, kernel},
		{[]string{kernel, larger}, larger},
		{[]string{larger, vm.Tag(), kernel}, vm.Tag()},
	} {
		if got := Nearest(c.tags, vm); got != c.want {
			t.Errorf("%v: %q, want %q", c.tags, got, c.want)
		}
	}
	if len(with(func(g *GoldenInfo) { g.VMM, g.Memory, g.VCPUs = "cloud-hypervisor", 16<<40, 240 })) > 128 {
		t.Error("a tag is longer than a registry takes")
	}
	bad := vm
	bad.VMM = "../x"
	if err := bad.validate(); err == nil {
		t.Error("a name that is no tag is taken")
	}
}
