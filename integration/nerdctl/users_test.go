//go:build integration

package nerdctl

import (
	"testing"

	"godwit.dev/godwit/integration/images"
)

// testUsers: with --userns-remap the guest makes the user namespace. Its root owns the container's files, and is an
// ordinary user outside.
func (s *site) testUsers(t *testing.T) {
	for _, file := range []string{"/etc/subuid", "/etc/subgid"} {
		s.write(t, file, "root:100000:65536\n")
	}
	name := "users"
	s.removedAtEnd(t, name)
	s.ok(t, "--userns-remap", "root", "run", "-d", "--name", name, "--runtime", runtimeName, images.Busybox,
		"sleep", "100000")
	s.checks(t, name, []check{
		{"ids", "id -u; tr -s ' ' </proc/self/uid_map; tr -s ' ' </proc/self/gid_map",
			"0\n 0 100000 65536\n 0 100000 65536\n"},
		{"files", "stat -c '%u %g' /bin /bin/busybox; touch /x && stat -c %u /x", "0 0\n0 0\n0\n"},
		{"no root outside", "mknod /null c 1 3 2>&1; true", "mknod: /null: Operation not permitted\n"},
	})
	s.ok(t, "restart", "-t", "0", name)
	s.checks(t, name, []check{{"after a restart", "stat -c %u /x", "0\n"}})
}
