package shim

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	"godwit.dev/godwit/network/dhcp"
	"godwit.dev/godwit/shim/bundle"
	"godwit.dev/godwit/shim/journal"
)

// maxResolver is more than anybody's resolv.conf.
const maxResolver = 64 << 10

// namesOf reads what containerd's clients give a container as files.
func namesOf(hostname string, copies bundle.Copies) (*journal.Names, error) {
	names := &journal.Names{Hostname: hostname}
	for _, c := range copies.Select("/etc/resolv.conf") {
		data, err := c.Read(maxResolver)
		if err != nil {
			return nil, fmt.Errorf("read DNS servers: %w", err)
		}
		if data == nil {
			continue
		}
		names.DNS, names.Search = resolver(string(data))
	}
	return names, nil
}

// resolver reads a resolv.conf (resolv.conf(5)): the last search list counts. What is no
// address, such as one with a zone of the host, says nothing to a guest.
func resolver(text string) (servers []netip.Addr, search []string) {
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		switch {
		case len(f) < 2:
		case f[0] == "nameserver":
			if a, err := netip.ParseAddr(f[1]); err == nil && a.Zone() == "" && !a.IsLoopback() {
				servers = append(servers, a)
			}
		case f[0] == "search", f[0] == "domain":
			search = nil
			for _, name := range f[1:] {
				if name = strings.TrimSuffix(name, "."); name != "" {
					search = append(search, name)
				}
			}
		}
	}
	return servers, search
}

// serveDHCP answers the guest on every link that has a sink, until the attachment is
// closed, or ctx, the life of the shim, ends: whatever becomes of the guest meanwhile, it may ask when it runs again.
func (n *nicSet) serveDHCP(ctx context.Context, j *journal.Journal) error {
	nics := n.wiring()
	for _, link := range j.Links {
		if link.Sink == "" {
			continue
		}
		cfg := dhcp.Config{NIC: link.NIC, Neighbors: link.Neighbors}
		if names := j.Names; names != nil {
			cfg.Hostname, cfg.DNS, cfg.Search = names.Hostname, names.DNS, names.Search
		}
		server, err := dhcp.New(cfg)
		if err != nil {
			return err
		}
		go func() {
			err := nics.Serve(ctx, link, server, func(lease dhcp.Lease) {
				if n.leases.note(lease) {
					n.log.Info("lease", "nic", link.NIC.ID, "address", lease.Address)
				}
			})
			if err != nil && ctx.Err() == nil {
				n.log.Error("serve DHCP", "nic", link.NIC.ID, "error", err)
			}
		}()
	}
	return nil
}
