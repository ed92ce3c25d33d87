package cli

import (
	"errors"
	"os"
	"strings"
	"testing"

	"godwit.dev/godwit/api/config"
)

// Doctor says whom VMMs run as: root without permission is fatal, root with it a warning, and
// both name what to do.
func TestCheckUserRow(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	for _, c := range []struct {
		first     int
		allow     bool
		ok, fatal bool
		says      string
	}{
		{config.Default().VMM.FirstUser, false, true, false, "1879048192"},
		{0, true, false, false, "root, with no capabilities"},
		{0, false, false, true, "vmm.first_user"},
	} {
		f := checkUser(&config.Config{VMM: config.VMM{FirstUser: c.first, AllowRoot: c.allow}})
		if f.OK != c.ok || f.Fatal != c.fatal || !strings.Contains(f.Detail, c.says) || (f.Remedy == "") != c.ok {
			t.Errorf("%d, %v: %+v", c.first, c.allow, f)
		}
	}
}

// RAM that may come to a disk by swap is told, with what helps on this kernel. A mount that cannot be looked at is not
// taken for a good one.
func TestSwapRow(t *testing.T) {
	for _, c := range []struct {
		active, swaps, can bool
		err                error
		ok                 bool
		remedy             string
	}{
		{true, false, true, nil, true, ""},
		{false, true, true, nil, true, ""},
		{true, true, true, nil, false, "noswap"},
		{true, true, false, nil, false, "6.4"},
		{true, false, true, errors.New("no answer"), false, "godwitd"},
	} {
		f := swapFinding(c.active, c.swaps, c.can, c.err)
		if f.OK != c.ok || f.Fatal || !strings.Contains(f.Remedy, c.remedy) || (f.Remedy == "") != c.ok {
			t.Errorf("%+v: %+v", c, f)
		}
	}
}
