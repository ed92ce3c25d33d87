package bench

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
)

// A guest names a place in RAM by MSR_KVM_WALL_CLOCK, and KVM writes there when it is named: a version, seconds and
// nanoseconds, 4 bytes each. A restore sets the MSR again, before the guest has executed anything. So these bytes
// differ after each restore, by whatever VMM.
const wallClockSize = 12

// noWallClock is the place where none is named: no byte may differ.
const noWallClock = int64(-1)

// below3G is RAM whose place in the file is its address.
const below3G = int64(3) << 30

// wallClockMSR matches the two numbers of the MSR in a state, with the place. State is JSON inside of strings.
var wallClockMSR = regexp.MustCompile(`\\*"index\\*":\s*(?:17|1263947008),\s*\\*"data\\*":\s*([0-9]+)`)

// wallClockOf answers the place that a device state of Cloud Hypervisor names.
func wallClockOf(state []byte) (int64, error) {
	place := noWallClock
	for _, m := range wallClockMSR.FindAllSubmatch(state, -1) {
		n, err := strconv.ParseInt(string(m[1]), 10, 64)
		switch {
		case err != nil || n >= below3G:
			return 0, fmt.Errorf("the wall clock is at %s: %w", m[1], errors.Join(err, syscall.EINVAL))
		case n == 0: // not named
		case place != noWallClock && place != n:
			return 0, fmt.Errorf("the wall clock is at %d and at %d: %w", place, n, syscall.EINVAL)
		default:
			place = n
		}
	}
	return place, nil
}

// stateMagic is what a device state of Cloud Hypervisor begins with.
const stateMagic = "GWCHST01"

// movedWallClock reads the device state that a move under way carries. Shims and workers hold it in a file without a
// name. Where there are several, they are the same.
func movedWallClock() (int64, error) {
	all, err := filepath.Glob("/proc/[0-9]*/fd/*")
	if err != nil {
		return 0, err
	}
	var state []byte
	for _, path := range all {
		if name, err := os.Readlink(path); err != nil || !strings.HasPrefix(name, "/memfd:state") {
			continue // or its process has ended
		}
		text, err := os.ReadFile(path)
		switch {
		case errors.Is(err, fs.ErrNotExist) || err == nil && !bytes.HasPrefix(text, []byte(stateMagic)):
			continue
		case err != nil:
			return 0, err
		case state != nil && !bytes.Equal(state, text):
			return 0, fmt.Errorf("there are two different device states: %w", syscall.EINVAL)
		}
		state = text
	}
	return wallClockOf(state)
}

// sameWallClock takes the clock in y for that in x, if both are times which KVM has written to the end.
func sameWallClock(x, y []byte) {
	for _, clock := range [][]byte{x, y} {
		version, nanos := binary.LittleEndian.Uint32(clock), binary.LittleEndian.Uint32(clock[8:])
		if version == 0 || version%2 != 0 || nanos >= 1e9 {
			return
		}
	}
	copy(y, x)
}
