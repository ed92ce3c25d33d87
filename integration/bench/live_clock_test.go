package bench

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"
)

// clockBytes is what KVM writes.
func clockBytes(version, seconds, nanos uint32) []byte {
	b := binary.LittleEndian.AppendUint32(nil, version)
	return binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(b, seconds), nanos)
}

// The wall clock may differ at the place that the guest has named, and nothing else may: not a byte next to it, not the
// same bytes elsewhere, and not what is no time.
func TestDifferOfWallClock(t *testing.T) {
	const size, clock = 3 << 20, int64(1<<20 + 5*pageSize + 40)
	here, there := clockBytes(2, 1_790_000_000, 5), clockBytes(6, 1_790_000_060, 999_999_999)
	for name, c := range map[string]struct {
		change func(b []byte)
		clock  int64
		want   int
	}{
		"the clock alone":        {func([]byte) {}, clock, 0},
		"not named":              {func([]byte) {}, noWallClock, 1},
		"named elsewhere":        {func([]byte) {}, clock + 4, 1},
		"on another page":        {func([]byte) {}, clock + pageSize, 1},
		"a byte before it":       {func(b []byte) { b[clock-1] ^= 1 }, clock, 1},
		"a byte after it":        {func(b []byte) { b[clock+wallClockSize] ^= 1 }, clock, 1},
		"and another page":       {func(b []byte) { b[0] ^= 1 }, clock, 1},
		"is being written":       {func(b []byte) { b[clock]++ }, clock, 1},
		"was never written":      {func(b []byte) { clear(b[clock : clock+4]) }, clock, 1},
		"no such nanoseconds":    {func(b []byte) { binary.LittleEndian.PutUint32(b[clock+8:], 1e9) }, clock, 1},
		"same bytes, other page": {func(b []byte) { copy(b[clock+pageSize:], there) }, clock, 1},
	} {
		a := make([]byte, size)
		copy(a[clock:], here)
		b := bytes.Clone(a)
		copy(b[clock:], there)
		c.change(b)
		if n, err := differ(bytes.NewReader(a), bytes.NewReader(b), c.clock, t.Logf); err != nil || n != c.want {
			t.Errorf("%s: %d pages, %v; want %d", name, n, err, c.want)
		}
	}
}

// The place is read from a device state, as deep in strings as it may be.
func TestWallClockOf(t *testing.T) {
	const msrs = `{"msrs":[{"index":17,"data":41943080},{"index":16,"data":7},{"index":1263947008,"data":41943080}]}`
	for name, c := range map[string]struct {
		state string
		want  int64
		fails bool
	}{
		"plain":              {state: msrs, want: 41943080},
		"in a string":        {state: strings.ReplaceAll(msrs, `"`, `\"`), want: 41943080},
		"in two":             {state: strings.ReplaceAll(msrs, `"`, `\\\"`), want: 41943080},
		"none":               {state: `{"msrs":[{"index":16,"data":7}]}`, want: noWallClock},
		"not named":          {state: `{"msrs":[{"index":17,"data":0}]}`, want: noWallClock},
		"nothing":            {want: noWallClock},
		"of two places":      {state: strings.Replace(msrs, "41943080", "41943084", 1), fails: true},
		"above 3 GiB":        {state: `{"index":17,"data":3221225472}`, fails: true},
		"no number of bytes": {state: `{"index":17,"data":99999999999999999999}`, fails: true},
	} {
		got, err := wallClockOf([]byte(c.state))
		if (err != nil) != c.fails || err == nil && got != c.want {
			t.Errorf("%s: %d, %v; want %d", name, got, err, c.want)
		}
	}
}
