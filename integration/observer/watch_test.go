package observer

import (
	"encoding/json"
	"net"
	"testing"
	"time"

	"godwit.dev/godwit/integration/images"
)

// A VM that runs twice is seen: a counter told again, or told after a larger one.
func TestWatcherSeesTwice(t *testing.T) {
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	w := Watch(conn)
	out, err := net.Dial("udp", conn.LocalAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	for _, c := range []uint64{1, 2, 3, 2, 4} {
		w.Mark("next")
		b, err := json.Marshal(images.Beacon{Nonce: "n", Counter: c, Time: time.Now()})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := out.Write(b); err != nil {
			t.Fatal(err)
		}
		if s, err := w.After(t.Context(), "next"); err != nil || s.Counter != c || s.From != "127.0.0.1" {
			t.Fatalf("beacon %d: %+v, %v", c, s, err)
		}
	}
	if doubles, back := w.Twice(); doubles != 1 || back != 1 {
		t.Errorf("%d doubled, %d back; want 1 and 1", doubles, back)
	}
	if w.Latest().Counter != 4 {
		t.Errorf("latest %+v", w.Latest())
	}
}
