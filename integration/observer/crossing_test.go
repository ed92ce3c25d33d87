package observer

import (
	"encoding/json"
	"testing"
	"time"

	"godwit.dev/godwit/integration/images"
)

func ticks(start time.Time, each time.Duration, counters ...uint64) (all []Tick) {
	for i, c := range counters {
		all = append(all, Tick{c, start.Add(time.Duration(i) * each)})
	}
	return all
}

// A way from place to place is measured, and each thing that must not be on it is counted.
func TestCross(t *testing.T) {
	at := time.Unix(1000, 0)
	ms := time.Millisecond
	for name, tt := range map[string]struct {
		from, to []Tick
		want     Crossing
	}{
		"clean":    {ticks(at, ms, 1, 2, 3), ticks(at.Add(30*ms), ms, 4, 5), Crossing{Gap: 28 * ms}},
		"lost":     {ticks(at, ms, 1, 2, 3), ticks(at.Add(30*ms), ms, 6, 8), Crossing{Gap: 28 * ms, Lost: 3}},
		"twice":    {ticks(at, ms, 1, 2, 3), ticks(at.Add(30*ms), ms, 3, 4), Crossing{Gap: 28 * ms, Twice: 1}},
		"late":     {ticks(at, 20*ms, 1, 2, 3), ticks(at.Add(30*ms), ms, 4, 5), Crossing{Gap: -10 * ms, Late: 1}},
		"repeated": {ticks(at, ms, 1, 1, 3), ticks(at.Add(30*ms), ms, 4), Crossing{Gap: 28 * ms, Twice: 1, Lost: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			p := &Ports{ticks: [][]Tick{tt.from, tt.to}}
			got, err := p.Cross(0, 1)
			if err != nil {
				t.Fatal(err)
			}
			got.Last, got.First = Tick{}, Tick{}
			if got != tt.want {
				t.Errorf("%+v, want %+v", got, tt.want)
			}
		})
	}
}

// A guest that was not heard at either end was not measured.
func TestCrossUnheard(t *testing.T) {
	p := &Ports{ticks: [][]Tick{ticks(time.Now(), 1, 1), nil}}
	for _, way := range [][2]int{{0, 1}, {1, 0}} {
		if c, err := p.Cross(way[0], way[1]); err == nil {
			t.Errorf("%v: %+v", way, c)
		}
	}
	p.Forget()
	if p.Arrived(0) {
		t.Error("it is heard after Forget")
	}
}

// What is no packet with a beacon and a time is no tick.
func TestParseTick(t *testing.T) {
	beacon, err := json.Marshal(images.Beacon{Nonce: "n", Counter: 7})
	if err != nil {
		t.Fatal(err)
	}
	whole := append(append([]byte{0x45}, make([]byte, 27)...), beacon...)
	for _, packet := range [][]byte{nil, whole[:10], whole[:28], whole[:40], whole} {
		if tick, ok := parseTick(packet, nil); ok {
			t.Errorf("%q: %+v", packet, tick)
		}
	}
}
