package peer

import (
	"context"
	"errors"
	"testing"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	nodev1 "godwit.dev/godwit/api/node/v1"
)

// boxes are containerd's containers.
type boxes struct {
	there bool
	err   error
}

func (b boxes) Has(context.Context, *nodev1.VM) (bool, error) { return b.there, b.err }

// A peer that asks is told whether containerd has a container: there, not there, or an error
// where containerd does not say. No other call waits for containerd.
func TestQueryContainer(t *testing.T) {
	for name, c := range map[string]struct {
		boxes Containers
		asks  bool
		want  nodev1.Presence
		fails bool
	}{
		"there":     {boxes{there: true}, true, nodev1.Presence_PRESENCE_THERE, false},
		"none":      {boxes{}, true, nodev1.Presence_PRESENCE_NONE, false},
		"no answer": {boxes{err: errors.New("away")}, true, nodev1.Presence_PRESENCE_UNKNOWN, true},
		"nobody":    {nil, true, nodev1.Presence_PRESENCE_UNKNOWN, false},
		"not asked": {boxes{err: errors.New("asked")}, false, nodev1.Presence_PRESENCE_UNKNOWN, false},
	} {
		s := &Server{Machines: &shims{query: &machinev1.QueryResponse{}}, Containers: c.boxes}
		got, err := s.Query(t.Context(), &nodev1.PeerRef{Vm: &nodev1.VM{Namespace: "default", Id: "web"}, Container: c.asks})
		if (err != nil) != c.fails || got.GetContainer() != c.want {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
}
