package client

import (
	"context"
	"fmt"
	"regexp"
	"strconv"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/errdefs"
)

// The oldest containerd that runs VMs: older ones do not ask a shim as godwit's answers.
const (
	containerdMajor = 2
	containerdMinor = 3
)

// versionForm is the beginning of what containerd says of itself, such as v2.4.2+unknown and 1.7.24~ds1.
var versionForm = regexp.MustCompile(`^v?(\d+)\.(\d+)(?:\.|\D|$)`)

// recent refuses a containerd that is too old. One that does not say its version, or says it in a form that is not
// known, is none.
func (c *Client) recent(ctx context.Context, ctr *containerd.Client) error {
	v, err := ctr.Version(ctx)
	if errdefs.IsNotImplemented(err) {
		return nil
	}
	if err != nil {
		return c.containerdError("ask for the version of containerd", err)
	}
	return TooOld(v.Version)
}

// TooOld is the error for a containerd of a version that runs no VMs; nil: it does, or the version is not known.
func TooOld(version string) error {
	parts := versionForm.FindStringSubmatch(version)
	if parts == nil {
		return nil
	}
	major, err := strconv.Atoi(parts[1])
	minor, err2 := strconv.Atoi(parts[2])
	if err != nil || err2 != nil || major > containerdMajor || major == containerdMajor && minor >= containerdMinor {
		return nil
	}
	return &Problem{What: fmt.Sprintf("containerd %s is too old to run a VM.", version),
		Why:    fmt.Sprintf("It has to be %d.%d or newer.", containerdMajor, containerdMinor),
		Remedy: "To see where one comes from: docs/how-to/install.md#where-containerd-23-comes-from.",
		Cause:  errdefs.ErrFailedPrecondition}
}
