package config

import (
	"strings"
	"testing"

	"github.com/containerd/errdefs"
)

// VMMs that would be root are refused unless that is permitted. The error has the name of the
// key and the remedy. A template's VMM is root where the others are.
func TestCheckUser(t *testing.T) {
	for _, c := range []struct {
		vmm      VMM
		ok       bool
		template int
	}{
		{VMM{FirstUser: 1000}, true, 1000 + 0xffff},
		{VMM{FirstUser: 1000, AllowRoot: true}, true, 1000 + 0xffff},
		{VMM{AllowRoot: true}, true, 0},
		{VMM{}, false, 0},
	} {
		err := c.vmm.CheckUser()
		if (err == nil) != c.ok {
			t.Errorf("%+v: %v", c.vmm, err)
		}
		if err != nil && (!errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "vmm.first_user") ||
			!strings.Contains(err.Error(), "vmm.allow_root")) {
			t.Errorf("%v names no key, or no remedy", err)
		}
		if got := c.vmm.TemplateUser(); got != c.template {
			t.Errorf("%+v: template's user %d", c.vmm, got)
		}
	}
}
