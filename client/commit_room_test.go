package client

import (
	"testing"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// What a VM may have changed is as much as its disk has: as its shim says. A shim of an older build says nothing: then
// the container says how large its disk was asked for, or the node how large it makes them.
func TestRoomOfAVM(t *testing.T) {
	d, _, c := newNode(t)
	vm := &nodev1.VM{Namespace: "default", Id: "web"}
	for name, want := range map[string]struct {
		said  uint64
		asked string
		room  uint64
	}{
		"its shim says it":   {3 << 30, "16GiB", 3 << 30},
		"the container says": {0, "16GiB", 16 << 30},
		"as the node makes":  {0, "", 8 << 30},
		"what no shim takes": {0, "huge", 8 << 30},
		"none":               {0, "0", 8 << 30},
	} {
		d.vms = []*nodev1.VMInfo{{Vm: vm, WritableBytes: want.said, Memory: 1 << 20}}
		o := &origin{vm: vm, annotations: map[string]string{"godwit.dev/writable-size": want.asked}}
		if room, err := c.room(t.Context(), o); err != nil || room.Disk != want.room || room.Memory != 1<<20 {
			t.Errorf("%s: %+v, %v", name, room, err)
		}
	}
}
