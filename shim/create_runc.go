package shim

import (
	"fmt"

	runcoptions "github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"godwit.dev/godwit/shim/bundle"
)

func isRunc(any *anypb.Any) bool { return any.MessageIs((*runcoptions.Options)(nil)) }

// refuseRunc refuses what runc's options ask for and a VM does not have, by the name that it has in
// containerd's configuration. Two are honoured without a word: SystemdCgroup, since the form of
// cgroupsPath says the same, and NoNewKeyring, since the guest makes no keyring for a container. IoUid and IoGid may
// name // root of the user namespace, as clients do: the guest gives a process its streams.
//
// Format: api/types/runc/options/oci.proto of containerd.
func refuseRunc(any *anypb.Any, dir string) error {
	o := new(runcoptions.Options)
	if err := proto.Unmarshal(any.GetValue(), o); err != nil {
		return fmt.Errorf("read options: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	uid, gid := uint32(0), uint32(0)
	if o.IoUid|o.IoGid != 0 {
		var err error
		if uid, gid, err = bundle.RootOf(dir); err != nil {
			return err
		}
	}
	const noRunc, noCRIU = "godwit runs no runc", "godwit runs no CRIU: use godwit checkpoint"
	for _, option := range []struct {
		set       bool
		name, why string
	}{
		{o.BinaryName != "", "BinaryName", noRunc},
		{o.Root != "", "Root", noRunc},
		{o.ShimCgroup != "", "ShimCgroup", "the shim stays in the cgroup that containerd starts it in"},
		{o.NoPivotRoot, "NoPivotRoot", "the guest's root can always be pivoted"},
		{o.IoUid != 0 && o.IoUid != uid, "IoUid", "the streams of a process belong to root of its container"},
		{o.IoGid != 0 && o.IoGid != gid, "IoGid", "the streams of a process belong to root of its container"},
		{o.CriuImagePath != "", "CriuImagePath", noCRIU},
		{o.CriuWorkPath != "", "CriuWorkPath", noCRIU},
		//nolint:staticcheck // deprecated, and refused
		{o.TaskApiAddress != "" || o.TaskApiVersion != 0, "TaskApiAddress", "a VM has a shim of its own"},
	} {
		if option.set {
			return fmt.Errorf("runtime option %s: %s: leave it out: %w", option.name, option.why, errdefs.ErrInvalidArgument)
		}
	}
	return nil
}
