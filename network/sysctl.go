package network

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// silentSysctls keeps the kernel from using an interface itself: the guest has its MAC and its addresses. Without IPv6
// it sends no listener reports either, which would draw the guest's MAC back to a node that the guest has left. They
// come up to a second late. Mode 1 is IN6_ADDR_GEN_MODE_NONE.
var silentSysctls = []struct{ name, value string }{
	{"disable_ipv6", "1"}, {"addr_gen_mode", "1"}, {"accept_ra", "0"}, {"autoconf", "0"},
}

func sysctlPath(iface, name string) string {
	return filepath.Join("/proc/sys/net/ipv6/conf", iface, name)
}

// readSysctls gives nothing where there is no IPv6.
func (s *session) readSysctls(iface string) (map[string]string, error) {
	found := map[string]string{}
	err := within(s.ns, func() error {
		for _, q := range silentSysctls {
			value, err := os.ReadFile(sysctlPath(iface, q.name))
			if errors.Is(err, fs.ErrNotExist) {
				continue
			} else if err != nil {
				return err
			}
			found[q.name] = strings.TrimSpace(string(value))
		}
		return nil
	})
	return found, err
}

// disableIPv6 makes an interface quiet. Like: sysctl -w net.ipv6.conf.$iface.disable_ipv6=1
func (s *session) disableIPv6(ctx context.Context, iface string) error {
	for _, q := range silentSysctls {
		err := s.step(ctx, "set "+q.name+" of", iface, func() error {
			return s.writeSysctl(iface, q.name, q.value)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *session) writeSysctl(iface, name, value string) error {
	return within(s.ns, func() error {
		path := sysctlPath(iface, name)
		now, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) || strings.TrimSpace(string(now)) == value {
			return nil
		} else if err != nil {
			return err
		}
		return os.WriteFile(path, []byte(value), 0o644)
	})
}
