package store

import "testing"

// Two Node objects are one machine only if both ids say so.
func TestOneMachine(t *testing.T) {
	noted := Machine{UID: "1", SystemUUID: "s", MachineID: "m"}
	for name, c := range map[string]struct {
		noted, now Machine
		want       bool
	}{
		"the same Node":             {noted, Machine{UID: "1"}, true},
		"made again":                {noted, Machine{UID: "2", SystemUUID: "s", MachineID: "m"}, true},
		"a cloned image":            {noted, Machine{UID: "2", SystemUUID: "other", MachineID: "m"}, false},
		"a board of the same maker": {noted, Machine{UID: "2", SystemUUID: "s", MachineID: "other"}, false},
		"it says nothing now":       {noted, Machine{UID: "2"}, false},
		"neither says anything":     {Machine{UID: "1"}, Machine{UID: "2"}, false},
		"no machine id":             {Machine{UID: "1", SystemUUID: "s"}, Machine{UID: "2", SystemUUID: "s"}, false},
		"no system UUID":            {Machine{UID: "1", MachineID: "m"}, Machine{UID: "2", MachineID: "m"}, false},
	} {
		if got := c.noted.Is(c.now); got != c.want {
			t.Errorf("%s: one machine: %v, want %v", name, got, c.want)
		}
	}
}
