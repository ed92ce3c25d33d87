package tasks

import (
	"testing"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/config"
	"godwit.dev/godwit/internal/fdtest"
)

// A CNI configuration that is not there is to be made. One that cannot be read for want of descriptors may be
// there, and trying again is right.
func TestConfigurationThatCannotBeRead(t *testing.T) {
	cfg := config.CNI{ConfDir: t.TempDir(), BinDir: t.TempDir()}
	if _, err := cni(cfg); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("no configuration: %v", err)
	}
	restore := fdtest.Exhaust(t, 0)
	_, err := cni(cfg)
	restore()
	if !errdefs.IsResourceExhausted(err) {
		t.Errorf("without descriptors: %v", err)
	}
}
