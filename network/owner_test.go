package network

import (
	"math"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
)

func TestAlias(t *testing.T) {
	for _, o := range []Owner{
		{VM: "default/web", Generation: 1, Attempt: 1},
		{VM: "k8s.io/a/g7/a8", Generation: math.MaxUint64, Attempt: math.MaxUint32},
		{VM: "default/n0123456789ab"},
		{VM: strings.Repeat("n", 76) + "/" + strings.Repeat("i", 76)},
	} {
		o.Node = "0123456789ab"
		alias, err := o.alias()
		if err != nil {
			t.Errorf("%+v: %v", o, err)
			continue
		}
		if got, ok := parseAlias(alias); !ok || got != o {
			t.Errorf("%s became %+v", alias, got)
		}
	}
	if got, _ := (Owner{Node: "0a1b2c3d4e5f", VM: "ns/vm", Generation: 3, Attempt: 9}).
		alias(); got != "godwit/ns/vm/n0a1b2c3d4e5f/g3/a9" {
		t.Errorf("alias: %s", got)
	}
	if got, ok := parseAlias("godwit/ns/nvm/g3/a9"); !ok || got != (Owner{VM: "ns/nvm", Generation: 3, Attempt: 9}) {
		t.Errorf("the alias of an earlier version: %+v, %t", got, ok)
	}
	const node = "0a1b2c3d4e5f"
	for _, o := range []Owner{{Node: node}, {VM: "ns/vm"}, {VM: "ns/vm", Node: "a"},
		{Node: node, VM: strings.Repeat("x", 250)}} {
		if _, err := o.alias(); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%+v: %v", o, err)
		}
	}
	for _, alias := range []string{"", "godwit/", "eth0", "godwit/vm", "godwit/vm/g1", "godwit/vm/a1/g1", "godwit//g1/a1",
		"godwit/vm/gx/a1", "godwit/vm/g1/a-1", "godwit/vm/g1/a4294967296", "other/vm/g1/a1"} {
		if o, ok := parseAlias(alias); ok {
			t.Errorf("%q became %+v", alias, o)
		}
	}
}
