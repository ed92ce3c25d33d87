//go:build integration

package network

import (
	"fmt"
	"io"
	"net"
	"testing"

	"godwit.dev/godwit/internal/bpf"
)

// answer tells each connection the port that it was made to.
func answer(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		fmt.Fprintf(c, "port %d", c.LocalAddr().(*net.TCPAddr).Port)
		c.Close()
	}
}

// TestListenLocalhost: connections to any port of localhost in the namespace come to the listener, and know their port.
// Those to another address do not. After Close nothing is taken.
func TestListenLocalhost(t *testing.T) {
	ns := newNS(t, "n")
	sh(t, ns, "ip", "address", "add", "192.0.2.1/32", "dev", "lo")
	sh(t, ns, "ip", "address", "add", "2001:db8::1/128", "dev", "lo")
	if err := bpf.LoopbackFault(); err != nil { // what godwit doctor asks
		t.Error(err)
	}
	all, err := ListenLocalhost(ns)
	if err != nil || len(all) != 2 {
		t.Fatal(len(all), err)
	}
	for _, l := range all {
		go answer(l)
	}
	dial := func(address string) (text string, err error) {
		err = Do(ns, func() error {
			c, err := net.Dial("tcp", address)
			if err != nil {
				return err
			}
			defer c.Close()
			data, err := io.ReadAll(c)
			text = string(data)
			return err
		})
		return text, err
	}
	for _, host := range []string{"127.0.0.1", "::1"} {
		for _, port := range []int{1, 80, 8080, 65535} {
			got, err := dial(net.JoinHostPort(host, fmt.Sprint(port)))
			if err != nil || got != fmt.Sprintf("port %d", port) {
				t.Errorf("%s, port %d: %q, %v", host, port, got, err)
			}
		}
	}
	for _, address := range []string{"192.0.2.1:80", "[2001:db8::1]:80"} {
		if got, err := dial(address); err == nil {
			t.Errorf("a connection to %s was taken: %q", address, got)
		}
	}
	for _, l := range all {
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for _, address := range []string{"127.0.0.1:80", "[::1]:80"} {
		if got, err := dial(address); err == nil {
			t.Errorf("a connection was taken after Close: %q", got)
		}
	}
}

// TestListenLocalhostWithoutIPv6: a namespace without ::1 has the listener of IPv4.
func TestListenLocalhostWithoutIPv6(t *testing.T) {
	ns := newNS(t, "n")
	sh(t, ns, "sysctl", "-qw", "net.ipv6.conf.lo.disable_ipv6=1")
	all, err := ListenLocalhost(ns)
	if err != nil || len(all) != 1 {
		t.Fatal(len(all), err)
	}
	if err := all[0].Close(); err != nil {
		t.Error(err)
	}
}
