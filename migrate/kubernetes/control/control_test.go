package control

import (
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"k8s.io/client-go/rest"

	"godwit.dev/godwit/api/config"
)

// A configuration that is no controller's is refused, and the error names the key.
func TestOpenRefusals(t *testing.T) {
	listens := config.Config{Node: "a", StateDir: t.TempDir()}
	listens.Controller.Listen = "127.0.0.1:0"
	for key, cfg := range map[string]config.Config{"controller.listen": {Node: "a"}, "certificate": listens} {
		_, err := Open(t.Context(), &cfg, &rest.Config{}, "x", nil, nil, nil)
		if err == nil || !strings.Contains(err.Error(), key) {
			t.Errorf("%s: %v", key, err)
		}
	}
	if _, err := Open(t.Context(), &config.Config{}, &rest.Config{}, "x", nil, nil, nil); !errdefs.IsInvalidArgument(err) {
		t.Errorf("not a controller: %v", err)
	}
}
