package cloudhypervisor

import (
	"strings"
	"testing"

	"github.com/containerd/errdefs"
)

// A key that the VMM does not take for what is checked, and one that comes twice, are refused at each level.
func TestStateHasExactKeys(t *testing.T) {
	const memory = 8 << 20
	good := string(stateWith(t, nil, ramMapping{Size: memory, Zone: ramZone}))
	if err := checkState([]byte(good), memory); err != nil {
		t.Fatal(err)
	}
	lies := map[string]string{
		"tree":    strings.Replace(good, `"snapshots":`, `"snapshots":{},"Snapshots":`, 1),
		"state":   strings.Replace(good, `"state":`, `"state":"hostile","STATE":`, 1),
		"twice":   strings.Replace(good, `"state":`, `"state":"hostile","state":`, 1),
		"alone":   strings.Replace(good, `"state":`, `"STATE":`, 1),
		"ranges":  strings.Replace(good, `\"guest_ram_mappings\":`, `\"guest_ram_mappings\":[],\"Guest_Ram_Mappings\":`, 1),
		"offset":  strings.Replace(good, `\"file_offset\":`, `\"file_offset\":4096,\"File_offset\":`, 1),
		"unicode": strings.Replace(good, `\"size\":`, `\"size\":4096,\"\u017fize\":`, 1),
	}
	for name, lie := range lies {
		if lie == good {
			t.Fatalf("%s: nothing is altered in %s", name, good)
		}
		if err := checkState([]byte(lie), memory); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s: got %v, want InvalidArgument", name, err)
		}
	}
}
