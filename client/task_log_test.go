package client

import (
	"context"
	"testing"

	containerd "github.com/containerd/containerd/v2/client"

	"godwit.dev/godwit/api/config"
	nodev1 "godwit.dev/godwit/api/node/v1"
)

// labelled is a container of which the labels are known.
type labelled struct {
	containerd.Container
	labels map[string]string
}

func (l labelled) Labels(context.Context) (map[string]string, error) { return l.labels, nil }

// A start without streams writes to the log that a label names. The container of a VM that came from another node has
// no label: its output goes where a wake sends it. That of another program writes nowhere.
func TestLogOfAStart(t *testing.T) {
	cfg := config.Default()
	cfg.StdioURI = "file:///log/{namespace}-{id}.log"
	c := New()
	c.load = func() (*config.Config, error) { return cfg, nil }
	for _, o := range []struct {
		labels map[string]string
		want   string
	}{
		{map[string]string{LabelLogURI: "file:///named"}, "file:///named"},
		{map[string]string{labelManaged: "true"}, "file:///log/other-web.log"},
		{map[string]string{labelManaged: "true", LabelLogURI: "null://"}, ""},
		{nil, ""},
	} {
		for _, terminal := range []bool{false, true} {
			creator, err := c.logOf(t.Context(), &nodev1.VM{Namespace: "other", Id: "web"}, labelled{labels: o.labels}, terminal)
			if err != nil {
				t.Fatal(err)
			}
			io, err := creator("web")
			if err != nil || io.Config().Stdout != o.want || o.want != "" && io.Config().Terminal != terminal {
				t.Errorf("%v, terminal %v: %+v, %v; want %q", o.labels, terminal, io.Config(), err, o.want)
			}
		}
	}
}
