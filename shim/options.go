package shim

import (
	"fmt"

	runtimeoptions "github.com/containerd/containerd/api/types/runtimeoptions/v1"
	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"godwit.dev/godwit/api/config"
	machinev1 "godwit.dev/godwit/api/machine/v1"
	"godwit.dev/godwit/api/record"
)

// readOptions answers which configuration a Create names and what its caller wants
// restored. Options meant for another runtime say nothing to us.
func readOptions(any *anypb.Any) (cfg *config.Config, path string, intent record.Intent, err error) {
	restore, runtime := new(machinev1.RestoreOptions), new(runtimeoptions.Options)
	switch {
	case any.MessageIs(restore):
		if err := proto.Unmarshal(any.GetValue(), restore); err != nil {
			return nil, "", intent, fmt.Errorf("read options: %w: %w", err, errdefs.ErrInvalidArgument)
		}
		path = restore.GetConfigPath()
		intent = record.Intent{Operation: restore.GetOperation(), Attempt: restore.GetAttempt(), Digest: restore.GetDigest()}
	case any.MessageIs(runtime):
		if err := proto.Unmarshal(any.GetValue(), runtime); err != nil {
			return nil, "", intent, fmt.Errorf("read options: %w: %w", err, errdefs.ErrInvalidArgument)
		}
		path = runtime.GetConfigPath()
		if path == "" && len(runtime.GetConfigBody()) > 0 {
			cfg, err = config.Parse("config_body", runtime.GetConfigBody())
			return cfg, "", intent, err
		}
	}
	cfg, err = config.Load(path)
	return cfg, path, intent, err
}
