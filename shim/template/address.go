package template

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// mac of a template's NIC, by its slot. It is in the device state once, and nowhere in the
// RAM: no driver has looked at the NIC. No copy keeps it.
func mac(slot int) net.HardwareAddr {
	return net.HardwareAddr{0x06, 'g', 'w', 't', 0xa5, byte(slot)}
}

// addressed refuses a state that does not hold each NIC's address just once.
func addressed(state []byte, slots []int) error {
	for _, slot := range slots {
		if n := bytes.Count(state, mac(slot)); n != 1 {
			return fmt.Errorf("its device state has the address of the NIC in slot %d %d times, not once: %w", slot, n,
				errdefs.ErrNotImplemented)
		}
	}
	return nil
}

// Readdress gives the NICs in these slots their own addresses.
func (t *Template) Readdress(macs map[int]string) error {
	if len(macs) == 0 {
		return nil
	}
	state := new(bytes.Buffer)
	if _, err := t.State.WriteTo(state); err != nil {
		return fmt.Errorf("read device state: %w", err)
	}
	data := state.Bytes()
	for slot, text := range macs {
		own, err := net.ParseMAC(text)
		if err != nil || len(own) != len(mac(slot)) {
			return fmt.Errorf("NIC in slot %d: MAC %q: %w", slot, text, errdefs.ErrInvalidArgument)
		}
		if err := addressed(data, []int{slot}); err != nil {
			return err
		}
		data = bytes.Replace(data, mac(slot), own, 1)
	}
	fd, err := unix.MemfdCreate("state", unix.MFD_CLOEXEC)
	if err != nil {
		return fmt.Errorf("make device state: %w", err)
	}
	f := os.NewFile(uintptr(fd), "state")
	if _, err = f.Write(data); err == nil {
		_, err = f.Seek(0, 0)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("make device state: %w", err), f.Close())
	}
	old := t.State
	t.State = f
	return old.Close()
}
