//go:build integration

package network

import (
	"bytes"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"godwit.dev/godwit/api/spec"
)

// A guest that may not spoof is heard under its own MAC and addresses, in ARP and neighbour discovery too, and under no
// other. What it needs before it has an address passes. One that may is heard under all.
func TestSpoof(t *testing.T) {
	for _, policy := range []string{SpoofDeny, SpoofAllow, ""} {
		t.Run("policy "+policy, func(t *testing.T) {
			f := newFabric(t, 1, 1500)
			a, links := f.attach(t, 0, func(l *Link) {
				l.Spoof = policy
				l.NIC.Routes = append(l.NIC.Routes, spec.Route{IPv6: true, Gateway: netip.MustParseAddr("fe80::1")})
			})
			g, w := newGuest(t, a, 0), listen(t, f.ns, "port0")
			for range 2 { // and after a Mute
				if err := a.Up(t.Context()); err != nil {
					t.Fatal(err)
				}
				spoofs(t, g, w, policy != SpoofDeny)
				if err := a.Mute(t.Context()); err != nil {
					t.Fatal(err)
				}
				if err := g.send(ip4(g.mac, "10.88.0.2", "10.88.0.1", 9, 9)); err != nil {
					t.Fatal(err)
				}
				if got := w.drain(links[0].NIC.MAC); len(got) != 0 {
					t.Errorf("%d frames while mute", len(got))
				}
			}
		})
	}
}

func spoofs(t *testing.T, g *guest, w wire, all bool) {
	t.Helper()
	type heard struct {
		Name string
		Was  bool
	}
	var got, want []heard
	w.drain("")
	for _, fr := range spoofFrames(g.mac) {
		if err := g.send(fr.frame); err != nil {
			t.Fatal(err)
		}
		// The tap hands a frame over before the write returns.
		got = append(got, heard{fr.name, slices.ContainsFunc(w.drain(""), func(b []byte) bool {
			return bytes.Equal(b, fr.frame)
		})})
		want = append(want, heard{fr.name, fr.fine || all})
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}
