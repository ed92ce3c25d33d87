package sandboxapi

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	criv1 "godwit.dev/godwit/api/cri/v1"
)

type podConfig = criv1.PodSandboxConfig

// configType is the type of the options of a CreateSandbox.
const configType = "runtime.v1.PodSandboxConfig"

// readConfig reads the pod's configuration. A sandbox without one is no pod of CRI.
func readConfig(any *anypb.Any) (*podConfig, error) {
	if any.MessageName() != configType {
		return nil, fmt.Errorf("options of type %q: a sandbox is made from a pod's configuration (%s), as the CRI plugin "+
			"sends it: for a VM without a pod use ctr run: %w", any.GetTypeUrl(), configType, errdefs.ErrInvalidArgument)
	}
	c := new(podConfig)
	if err := proto.Unmarshal(any.GetValue(), c); err != nil {
		return nil, fmt.Errorf("options: read the pod's configuration: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	return c, nil
}

// optionsFile of a bundle has the options of the runtime handler.
const optionsFile = "godwit-options"

// KeepOptions notes the options that containerd's start brings. A CreateSandbox has none, other than the Create of a
// task.
func KeepOptions(bundle string, options *anypb.Any) error {
	data, err := proto.Marshal(options)
	if err != nil {
		return fmt.Errorf("keep runtime options: %w", err)
	}
	if err := os.WriteFile(filepath.Join(bundle, optionsFile), data, 0o600); err != nil {
		return fmt.Errorf("keep runtime options: %w", err)
	}
	return nil
}

func readOptions(bundle string) (*anypb.Any, error) {
	data, err := os.ReadFile(filepath.Join(bundle, optionsFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read runtime options: %w", err)
	}
	options := new(anypb.Any)
	if err := proto.Unmarshal(data, options); err != nil {
		return nil, fmt.Errorf("read runtime options: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	return options, nil
}
