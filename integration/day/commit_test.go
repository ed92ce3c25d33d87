//go:build integration

package day

import (
	"encoding/json"
	"strings"
	"testing"
)

// What a VM has changed becomes an image, which runs, and which nerdctl can run too: files, modes, links that lead out
// of the root, and what was deleted. The VM goes on.
func (s *site) testCommit(t *testing.T) {
	s = s.within(t)
	s.sh("mkdir -p /app/sub /root/new; echo kept >/app/sub/file; chmod 4750 /app/sub/file; ln -s sub/file /app/link; " +
		"ln -s /../../../etc /app/up; echo secret >/dev/shm/mount; echo more >>/etc/group; rm /bin/stty; " +
		"rm /etc/passwd; mkdir /etc/passwd; mkfifo /app/pipe; touch /bin/tty.new; mv /bin/tty.new /bin/tty")
	var diff struct{ Changes []struct{ Kind, Path string } }
	if err := json.Unmarshal([]byte(s.ok("diff", "-o", "json", "web")), &diff); err != nil {
		t.Fatal(err)
	}
	kinds := map[string]string{}
	for _, c := range diff.Changes {
		kinds[c.Path] = c.Kind
	}
	for path, kind := range map[string]string{"/app/sub/file": "A", "/app/up": "A", "/etc/group": "C", "/bin/stty": "D",
		"/etc/passwd": "C", "/bin/tty": "C", "/bin/busybox": "", "/dev/shm/mount": "", "/app/pipe": "", "/etc": ""} {
		if kinds[path] != kind {
			t.Errorf("diff says %q of %s, want %q", kinds[path], path, kind)
		}
	}
	const image = "godwit.test/made:1"
	if out := s.ok("commit", "-a", "Ada", "-m", "with app", "web", image); strings.TrimSpace(out) != image {
		t.Errorf("commit says %q", out)
	}
	look := "cat /app/link; stat -c %a /app/sub/file; readlink /app/up; tail -n1 /etc/group; ls -d /etc/passwd/; " +
		"test -e /bin/stty || echo no stty; stat -c %s:%F /bin/tty; ls /app /dev/shm"
	want := "kept\n4750\n/../../../etc\nmore\n/etc/passwd/\nno stty\n0:regular empty file\n" +
		"/app:\nlink\nsub\nup\n\n/dev/shm:\n"
	if out := s.ok("run", "--rm", image, "sh", "-c", look); out != want {
		t.Errorf("a VM of the image says %q, want %q", out, want)
	}
	// A second commit of the same name has what came later, and the VM is as it was.
	s.sh("rm -r /app/sub; echo later >/app/late")
	s.ok("commit", "web", image)
	if out := s.ok("run", "--rm", image, "sh", "-c", "cat /app/late; test -e /app/sub || echo gone"); out !=
		"later\ngone\n" {
		t.Errorf("a VM of the second image says %q", out)
	}
	s.sh("touch /app/.wh.x")
	s.fails(4, "rename or remove it", "commit", "web", image)
	s.sh("rm /app/.wh.x")
	s.fails(2, "", "commit", "web", "Not/A/Name")
	s.fails(3, "", "commit", "nowhere", image)
}
