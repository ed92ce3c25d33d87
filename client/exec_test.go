package client

import (
	"slices"
	"testing"

	v1 "github.com/containerd/cgroups/v3/cgroup1/stats"
	v2 "github.com/containerd/cgroups/v3/cgroup2/stats"
	"github.com/containerd/containerd/api/types"
	"github.com/containerd/typeurl/v2"
)

// A variable of a command takes the place of the VM's own one, and of none that only begins with its name.
func TestEnvironmentOver(t *testing.T) {
	own := []string{"PATH=/bin", "A=1", "AB=2"}
	if got := environmentOver(own, []string{"A=", "C=3", "C=4"}); !slices.Equal(got,
		[]string{"PATH=/bin", "AB=2", "A=", "C=4"}) || !slices.Equal(own, []string{"PATH=/bin", "A=1", "AB=2"}) {
		t.Errorf("%q, own %q", got, own)
	}
}

// The figures are the same whichever version of cgroups the host has; those of another kind are refused.
func TestStatsOfBothVersions(t *testing.T) {
	want := Stats{CPU: 5, Memory: 6, Limit: 7, Pids: 8, Read: 9, Written: 10}
	for name, m := range map[string]any{
		"v1": &v1.Metrics{CPU: &v1.CPUStat{Usage: &v1.CPUUsage{Total: 5000}}, Pids: &v1.PidsStat{Current: 8},
			Memory: &v1.MemoryStat{Usage: &v1.MemoryEntry{Usage: 6, Limit: 7}},
			Blkio: &v1.BlkIOStat{IoServiceBytesRecursive: []*v1.BlkIOEntry{{Op: "Read", Value: 4}, {Op: "Read", Value: 5},
				{Op: "Write", Value: 10}}}},
		"v2": &v2.Metrics{CPU: &v2.CPUStat{UsageUsec: 5}, Memory: &v2.MemoryStat{Usage: 6, UsageLimit: 7},
			Pids: &v2.PidsStat{Current: 8}, Io: &v2.IOStat{Usage: []*v2.IOEntry{{Rbytes: 9, Wbytes: 10}}}},
		"neither": &types.Metric{},
	} {
		data, err := typeurl.MarshalAnyToProto(m)
		if err != nil {
			t.Fatal(err)
		}
		var got Stats
		err = got.read(&types.Metric{Data: data})
		if (err == nil) != (name != "neither") || err == nil && got != want {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}
