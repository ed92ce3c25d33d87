package shim

import (
	"fmt"
	"os"
	"path/filepath"

	runtimeoptions "github.com/containerd/containerd/api/types/runtimeoptions/v1"
	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"godwit.dev/godwit/api/config"
	"godwit.dev/godwit/api/record"
)

// readOptions answers which configuration a Create names and what its caller wants
// restored. Options of a kind that is not known are refused, and those of runc that mean nothing here.
func readOptions(any *anypb.Any, bundle string) (cfg *config.Config, path string, intent record.Intent, err error) {
	runtime := new(runtimeoptions.Options)
	order, err := record.OrderOf(any)
	switch {
	case err != nil:
		return nil, "", intent, err
	case order != nil:
		path = order.GetConfigPath()
		intent = record.Intent{Operation: order.GetOperation(), Attempt: order.GetAttempt(), Digest: order.GetDigest(),
			Stream: order.GetStream()}
	case any.MessageIs(runtime):
		if err := proto.Unmarshal(any.GetValue(), runtime); err != nil {
			return nil, "", intent, fmt.Errorf("read options: %w: %w", err, errdefs.ErrInvalidArgument)
		}
		path = runtime.GetConfigPath()
		if path == "" && len(runtime.GetConfigBody()) > 0 {
			// delete, a process of its own, must find it too.
			path = filepath.Join(bundle, "godwit.toml")
			if err := os.WriteFile(path, runtime.GetConfigBody(), 0o600); err != nil {
				return nil, "", intent, fmt.Errorf("keep configuration: %w", err)
			}
		}
	case isRunc(any):
		if err := refuseRunc(any, bundle); err != nil {
			return nil, "", intent, err
		}
	case any != nil && (any.GetTypeUrl() != "" || len(any.GetValue()) > 0):
		return nil, "", intent, fmt.Errorf("runtime options of type %q are not known: use %s, whose ConfigPath names a "+
			"configuration of godwit: %w", any.GetTypeUrl(), proto.MessageName(runtime), errdefs.ErrInvalidArgument)
	}
	if cfg, err = config.Load(path); err == nil {
		err = cfg.VMM.CheckUser()
	}
	return cfg, path, intent, err
}
