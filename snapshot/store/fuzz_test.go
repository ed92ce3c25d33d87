package store

import (
	"net/url"
	"testing"
)

// hosts.toml is written by people and by other programs. What is read leaves each host an
// address that can be asked, and the registry itself as the last.
func FuzzHosts(f *testing.F) {
	for _, text := range []string{
		"server = \"https://registry.example:5000\"\nca = \"ca.pem\"\n",
		"[host.\"https://mirror.example\"]\ncapabilities = [\"pull\"]\nclient = [[\"a\", \"b\"]]\noverride_path = " +
			"true\n[host.\"https://mirror.example\".header]\nx-team = [\"birds\"]\n",
		"[host.\"http://mirror.example/v2/x\"]\nskip_verify = true\ndial_timeout = \"1s\"\n",
	} {
		f.Add([]byte(text))
	}
	server := endpoint{scheme: "https", host: "registry.example", prefix: "/v2", pull: true, push: true}
	f.Fuzz(func(t *testing.T, data []byte) {
		all, err := parseHosts("/etc/certs.d", data, server)
		if err != nil {
			return
		}
		if len(all) == 0 {
			t.Fatal("no host is left")
		}
		for _, e := range all {
			u, err := url.Parse(e.address("blobs/x", "vms/y"))
			if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
				t.Fatalf("host %+v: address %v, %v", e, u, err)
			}
		}
	})
}
