package main

import (
	"encoding/json"
	"net"
	"strings"
	"testing"
	"time"

	"godwit.dev/godwit/integration/images"
)

func TestTickerCounts(t *testing.T) {
	k := newTicker("nonce", time.Millisecond)
	for want := uint64(1); want <= 1234; want++ {
		k.next()
		var b images.Beacon
		if err := json.Unmarshal(k.data, &b); err != nil || b.Counter != want || b.Nonce != "nonce" {
			t.Fatalf("beacon %d: %s, %v", want, k.data, err)
		}
	}
	if room := len(k.digits); room != len("18446744073709551615") {
		t.Errorf("room for %d digits", room)
	}
	copy(k.digits, strings.Repeat(" ", 15)+"99999")
	if k.next(); strings.TrimSpace(string(k.digits)) != "100000" {
		t.Errorf("after 99999 comes %s", k.digits)
	}
}

func TestTick(t *testing.T) {
	l, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	p := &probe{nonce: "0123"}
	go p.tick(l.LocalAddr().String(), time.Millisecond)
	hears(t, l, p.nonce)
}
