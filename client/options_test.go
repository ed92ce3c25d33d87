package client

import (
	"math"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
)

// Ports are read as docker reads them, and what is none is refused by its name.
func TestParsePort(t *testing.T) {
	port := func(ip string, host, inner int32, protocol string) Port {
		return Port{HostIP: ip, HostPort: host, ContainerPort: inner, Protocol: protocol}
	}
	for said, want := range map[string][]Port{
		"80":                    {port("0.0.0.0", 0, 80, "tcp")},
		"8080:80":               {port("0.0.0.0", 8080, 80, "tcp")},
		"127.0.0.1:8080:80/udp": {port("127.0.0.1", 8080, 80, "udp")},
		"127.0.0.1::80":         {port("127.0.0.1", 0, 80, "tcp")},
		"[::1]:8080:80":         {port("::1", 8080, 80, "tcp")},
		"8000-8001:80-81":       {port("0.0.0.0", 8000, 80, "tcp"), port("0.0.0.0", 8001, 81, "tcp")},
	} {
		if got, err := ParsePort(said); err != nil || !cmp.Equal(got, want) {
			t.Errorf("%s = %v, %v", said, got, err)
		}
	}
	for _, said := range []string{"", "x", "0", "70000", "80:", "a:80", "80/icmp", "1.2.3:80:80", "8000-8002:80-81",
		"81-80", "host:80:80", "-1"} {
		if got, err := ParsePort(said); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "-p") {
			t.Errorf("%q = %v, %v", said, got, err)
		}
	}
}

// A port of the host that another one has is refused, by the name of who has it; one that is not named is chosen.
func TestChoosePorts(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	used := int32(l.Addr().(*net.TCPAddr).Port)
	if _, err := choosePorts([]Port{{HostIP: "127.0.0.1", HostPort: used, ContainerPort: 80, Protocol: "tcp"}},
		nil); !errdefs.IsAlreadyExists(err) {
		t.Errorf("a program has it: %v", err)
	}
	got, err := choosePorts([]Port{{HostIP: "127.0.0.1", ContainerPort: 80, Protocol: "tcp"}}, nil)
	if err != nil || len(got) != 1 || got[0].HostPort == 0 {
		t.Fatalf("%v, %v", got, err)
	}
	if _, err := choosePorts(got, map[string]string{portKey(got[0]): "web"}); !errdefs.IsAlreadyExists(err) ||
		!strings.Contains(err.Error(), "web") {
		t.Errorf("a VM has it: %v", err)
	}
}

// A port of the host is published once: the second -p of it would lead nowhere. Other addresses and protocols have
// ports of their own. SCTP is not tried on the host.
func TestPortTwice(t *testing.T) {
	for _, c := range []struct {
		said  []string
		twice bool
	}{
		{[]string{"127.0.0.1:7000:80/sctp", "127.0.0.1:7000:81/sctp"}, true},
		{[]string{"7000:80/sctp", "127.0.0.1:7000:81/sctp"}, true},
		{[]string{"127.0.0.1:7000:80/sctp", "7000:81/sctp"}, true},
		{[]string{"[::1]:7000:80/sctp", "[::]:7000:81/sctp"}, true},
		{[]string{"7000:80/sctp", "7000:80/sctp"}, true},
		{[]string{"7000-7003:80-83/sctp", "7003:90/sctp"}, true},
		{[]string{"127.0.0.1:7000:80/sctp", "127.0.0.2:7000:81/sctp"}, false},
		{[]string{"7000:80/sctp", "[::]:7000:81/sctp"}, false},
		{[]string{"7000-7002:80-82/sctp", "7003:90/sctp"}, false},
		{[]string{"127.0.0.1::80", "127.0.0.1::81"}, false},
	} {
		var ports []Port
		for _, said := range c.said {
			some, err := ParsePort(said)
			if err != nil {
				t.Fatal(err)
			}
			ports = append(ports, some...)
		}
		if _, err := choosePorts(ports, nil); c.twice != errdefs.IsInvalidArgument(err) || !c.twice && err != nil {
			t.Errorf("%v: %v", c.said, err)
		}
	}
}

// A path in the VM is that of one volume: another one of the same path would be hidden.
func TestVolumeTwice(t *testing.T) {
	host := t.TempDir()
	for _, second := range []string{host + ":/data:copy", host + ":/data/:ro", host + ":/x/../data:ro"} {
		_, err := (&VMOptions{Image: "i", Volumes: []string{host + ":/data:ro", second}}).check()
		if !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), second) {
			t.Errorf("%s: %v", second, err)
		}
	}
	o := &VMOptions{Image: "i", Volumes: []string{host + ":/data:ro", host + ":/data/more:ro", host + ":/other:ro"}}
	if _, err := o.check(); err != nil {
		t.Errorf("paths that differ: %v", err)
	}
}

// A directory of the host is copied, so it is taken with ro or copy only. A named volume, and what is not there, are
// refused.
func TestVolumes(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "f")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for said, write := range map[string]bool{dir + ":/x:ro": false, dir + ":/x:copy": true, file + ":/x": false,
		file + ":/x:ro": false} {
		if v, err := parseVolume(said); err != nil || v.write != write || v.mount.Destination != "/x" {
			t.Errorf("%s = %v, %v", said, v, err)
		}
	}
	for said, words := range map[string]string{dir + ":/x": "stays in the VM", dir + ":/x:rw": ":copy",
		"data:/x": "./data", dir + ":x:ro": "absolute", dir: "HOST:PATH", dir + ":/x:z": `"z"`, ":/x": "HOST:PATH"} {
		if _, err := parseVolume(said); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), words) {
			t.Errorf("%s: %v, want %q", said, err, words)
		}
	}
	if _, err := parseVolume(dir + "/none:/x:ro"); !errdefs.IsNotFound(err) {
		t.Errorf("what is not there: %v", err)
	}
}

// Options that cannot be are refused before anybody is asked, by the flag's name.
func TestOptionsAreChecked(t *testing.T) {
	for words, o := range map[string]VMOptions{
		"--network": {Network: "host"}, "-p 80": {Network: "none", Ports: []string{"80"}}, "--memory": {Memory: 1},
		"--cpus": {CPUs: -1}, "--pull": {Pull: "sometimes"}, "name \"a b\"": {Name: "a b"},
		"--name": {Name: strings.Repeat("a", 64)}, "name \"../x\"": {Name: "../x"},
	} {
		if _, err := o.check(); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), words) {
			t.Errorf("%+v: %v, want %q", o, err, words)
		}
	}
}

// A number of CPUs is one that a VM can have.
func TestCPUsAreANumber(t *testing.T) {
	for _, cpus := range []float64{math.NaN(), math.Inf(1), math.Inf(-1), 240.5, 1e300, 0.001} {
		if _, err := (&VMOptions{CPUs: cpus}).check(); !errdefs.IsInvalidArgument(err) ||
			!strings.Contains(err.Error(), "--cpus") {
			t.Errorf("--cpus %v: %v", cpus, err)
		}
	}
	for _, cpus := range []float64{0, 0.01, 1.5, 240} {
		if _, err := (&VMOptions{CPUs: cpus}).check(); err != nil {
			t.Errorf("--cpus %v: %v", cpus, err)
		}
	}
}

// A name that was not given is made of the image's, and is one that containerd takes.
func TestMadeUpNames(t *testing.T) {
	for image, begin := range map[string]string{"alpine": "alpine-", "registry.example/team/web_app.x:1": "web-app-x-",
		"/": "vm-"} {
		if got := madeUp(image); !strings.HasPrefix(got, begin) || checkName(got) != nil {
			t.Errorf("%s: %q", image, got)
		}
	}
	for image, want := range map[string]string{"alpine": "/library/alpine:latest",
		"r.example/x@" + digest("ab"): "r.example/x@" + digest("ab")} {
		if got, err := ImageName(image); err != nil || !strings.HasSuffix(got, want) {
			t.Errorf("%s: %s, %v", image, got, err)
		}
	}
	if _, err := ImageName("UPPER"); !errdefs.IsInvalidArgument(err) {
		t.Errorf("no image: %v", err)
	}
}
