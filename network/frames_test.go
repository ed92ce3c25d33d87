package network

import (
	"encoding/hex"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"godwit.dev/godwit/api/spec"
)

// Golden bytes, put together by hand from the RFCs.
func TestAnnouncements(t *testing.T) {
	const (
		mac  = "020000000001"
		bc   = "ffffffffffff"
		pad  = "000000000000000000000000000000000000"
		arph = "0001 0800 06 04"
	)
	nic := spec.NIC{ID: "net0", MAC: "02:00:00:00:00:01", Addresses: []netip.Prefix{
		netip.MustParsePrefix("10.1.2.3/24"), netip.MustParsePrefix("2001:db8::5/64")}}
	want := []string{
		bc + mac + "8035" + arph + "0003" + mac + "00000000" + mac + "00000000" + pad,
		bc + mac + "0806" + arph + "0001" + mac + "0a010203" + "000000000000" + "0a010203" + pad,
		bc + mac + "0806" + arph + "0002" + mac + "0a010203" + mac + "0a010203" + pad,
		"333300000001" + mac + "86dd" + "60000000 0020 3a ff" +
			"20010db8000000000000000000000005" + "ff020000000000000000000000000001" +
			"88 00 f922 20000000" + "20010db8000000000000000000000005" + "02 01" + mac,
	}
	frames, err := announcements(nic)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range frames {
		got = append(got, hex.EncodeToString(f))
	}
	for i := range want {
		want[i] = strings.ReplaceAll(want[i], " ", "")
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if _, err := announcements(spec.NIC{MAC: "nonsense"}); err == nil {
		t.Error("a bad MAC passed")
	}
}

// A receiver adds up everything, the checksum included, and gets all ones.
func TestChecksum(t *testing.T) {
	mac, _ := net.ParseMAC("02:00:00:00:00:01")
	ip := netip.MustParseAddr("fd00::ffff")
	f := neighborAdvertisement(mac, ip)
	if got := checksum6(ip, allNodes, 58, f[54:]); got != 0 {
		t.Errorf("sum over a checked packet: %#x", got)
	}
	if odd := checksum6(ip, allNodes, 58, []byte{1}); odd != checksum6(ip, allNodes, 58, []byte{1, 0})+1 {
		t.Errorf("odd length: %#x", odd)
	}
}
