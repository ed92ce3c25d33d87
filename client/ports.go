package client

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	gocni "github.com/containerd/go-cni"
)

// LabelPorts is the label of a container that holds its published ports, as JSON of gocni.PortMapping. nerdctl made it.
const LabelPorts = "nerdctl/ports"

// Port is a port of a VM that the host publishes.
type Port = gocni.PortMapping

// ParsePort reads [HOSTIP:][HOSTPORT:]PORT[/tcp|udp|sctp]. Both ports can be ranges of one length, as 8000-8002.
// Without HOSTPORT the host's port is 0: one that is free is chosen when the VM is made.
func ParsePort(said string) ([]Port, error) {
	bad := func(why string) error {
		return fmt.Errorf("-p %q: %s. Write it as [HOSTIP:][HOSTPORT:]PORT[/tcp|udp|sctp]: %w", said, why,
			errdefs.ErrInvalidArgument)
	}
	rest, protocol, found := strings.Cut(said, "/")
	if protocol = strings.ToLower(protocol); !found {
		protocol = "tcp"
	}
	if protocol != "tcp" && protocol != "udp" && protocol != "sctp" {
		return nil, bad(fmt.Sprintf("%q is no protocol", protocol))
	}
	address, host, inner := "0.0.0.0", "", rest
	if i := strings.LastIndex(rest, ":"); i >= 0 {
		host, inner = rest[:i], rest[i+1:]
		if i = strings.LastIndex(host, ":"); i >= 0 {
			address, host = strings.Trim(host[:i], "[]"), host[i+1:]
		}
	}
	if ip, err := netip.ParseAddr(address); err != nil || ip.Zone() != "" {
		return nil, bad(fmt.Sprintf("%q is no IP address", address))
	}
	first, last, err := portRange(inner)
	if err != nil {
		return nil, bad(err.Error())
	}
	from := 0
	if host != "" {
		var to int
		if from, to, err = portRange(host); err != nil {
			return nil, bad(err.Error())
		}
		if to-from != last-first {
			return nil, bad("the two ranges differ in length")
		}
	}
	var all []Port
	for i := range last - first + 1 {
		p := Port{ContainerPort: int32(first + i), Protocol: protocol, HostIP: address}
		if host != "" {
			p.HostPort = int32(from + i)
		}
		all = append(all, p)
	}
	return all, nil
}

func portRange(said string) (first, last int, err error) {
	low, high, isRange := strings.Cut(said, "-")
	if !isRange {
		high = low
	}
	first, ferr := strconv.Atoi(low)
	last, lerr := strconv.Atoi(high)
	if ferr != nil || lerr != nil || first < 1 || last > 65535 || last < first {
		return 0, 0, fmt.Errorf("%q is no port from 1 to 65535", said)
	}
	return first, last, nil
}

// portsOf reads the label of a container.
func portsOf(labels map[string]string) ([]Port, error) {
	if labels[LabelPorts] == "" {
		return nil, nil
	}
	var all []Port
	if err := json.Unmarshal([]byte(labels[LabelPorts]), &all); err != nil {
		return nil, fmt.Errorf("label %s: %w: %w", LabelPorts, err, errdefs.ErrFailedPrecondition)
	}
	return all, nil
}

// choosePorts gives each port of the host that is 0 a free one. It refuses one that a program of the host or another
// container has, and one that is named twice. taken are those of other containers, and who has each.
func choosePorts(ports []Port, taken map[string]string) ([]Port, error) {
	chosen := make([]Port, 0, len(ports))
	for _, p := range ports {
		free, err := probe(p)
		for range portTries { // the one that was free may be that of an earlier -p
			if err != nil || p.HostPort != 0 || !overlaps(chosen, p, free) {
				break
			}
			free, err = probe(p)
		}
		if err != nil {
			return nil, fmt.Errorf("-p %s: port %d of the host is in use: %v. Choose another one, or end the program that "+
				"has it: %w", portText(p), p.HostPort, err, errdefs.ErrAlreadyExists)
		}
		if overlaps(chosen, p, free) {
			return nil, fmt.Errorf("-p %s: port %d of the host is named by another -p too. Choose another one: %w",
				portText(p), free, errdefs.ErrInvalidArgument)
		}
		p.HostPort = free
		if who := taken[portKey(p)]; who != "" {
			return nil, fmt.Errorf("-p %s: port %d of the host is that of %s. Choose another one, or end it: "+
				"godwit stop %s: %w", portText(p), p.HostPort, who, who, errdefs.ErrAlreadyExists)
		}
		chosen = append(chosen, p)
	}
	return chosen, nil
}

// portTries bounds how often a free port is looked for.
const portTries = 10

// overlaps reports whether one of the chosen ports would take what comes to a port of the host for p.
func overlaps(chosen []Port, p Port, port int32) bool {
	ip := address(p)
	return slices.ContainsFunc(chosen, func(c Port) bool {
		other := address(c)
		return c.HostPort == port && c.Protocol == p.Protocol && (ip == other ||
			ip.Is4() == other.Is4() && (ip.IsUnspecified() || other.IsUnspecified()))
	})
}

func portKey(p Port) string { return fmt.Sprintf("%d/%s", p.HostPort, p.Protocol) }

// portText is the form that ParsePort reads.
func portText(p Port) string {
	return fmt.Sprintf("%s:%d/%s", net.JoinHostPort(p.HostIP, strconv.Itoa(int(p.HostPort))), p.ContainerPort, p.Protocol)
}

// probe listens on a port of the host for a moment, and answers which it is. SCTP is not tried.
func probe(p Port) (int32, error) {
	address := net.JoinHostPort(p.HostIP, strconv.Itoa(int(p.HostPort)))
	switch p.Protocol {
	case "tcp":
		l, err := net.Listen("tcp", address)
		if err != nil {
			return 0, err
		}
		defer l.Close()
		return int32(l.Addr().(*net.TCPAddr).Port), nil
	case "udp":
		l, err := net.ListenPacket("udp", address)
		if err != nil {
			return 0, err
		}
		defer l.Close()
		return int32(l.LocalAddr().(*net.UDPAddr).Port), nil
	}
	if p.HostPort == 0 {
		return p.ContainerPort, nil
	}
	return p.HostPort, nil
}

// address of the host. ParsePort has read it, or godwit wrote it.
func address(p Port) netip.Addr {
	ip, _ := netip.ParseAddr(p.HostIP)
	return ip.Unmap()
}
