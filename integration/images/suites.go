package images

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// userland is the whole of busybox with the users that the CRI suites know. Its applets are links that
// applet makes: one suite masks a single applet, another one follows a link.
func userland(applet func(name string) File) ([]File, error) {
	busybox, err := os.ReadFile(busyboxPath)
	if err != nil {
		return nil, fmt.Errorf("read busybox (Debian package busybox-static): %w", err)
	}
	list, err := exec.Command(busyboxPath, "--list").Output()
	if err != nil {
		return nil, fmt.Errorf("list the applets of busybox: %w", err)
	}
	var files []File
	for _, dir := range strings.Fields("bin etc dev proc sys run root tmp usr usr/sbin var var/run var/tmp home") {
		files = append(files, File{Name: dir, Mode: fs.ModeDir | 0o755})
	}
	text := map[string]string{
		"etc/passwd": "root:x:0:0:root:/root:/bin/sh\ndaemon:x:1:1:daemon:/tmp:/bin/false\n" +
			"www-data:x:33:33:www-data:/tmp:/bin/sh\n" +
			"nobody:x:65534:65534:nobody:/tmp:/bin/false\n",
		"etc/group":      "root:x:0:\ndaemon:x:1:\nwheel:x:10:root\nwww-data:x:33:\nnobody:x:65534:\n",
		"etc/os-release": "NAME=\"Alpine Linux\"\n", // which a test of containerd's looks for
	}
	for _, name := range []string{"etc/passwd", "etc/group", "etc/os-release"} {
		files = append(files, File{Name: name, Mode: 0o644, Data: []byte(text[name])})
	}
	files = append(files, File{Name: "bin/busybox", Mode: 0o755, Data: busybox})
	for _, name := range strings.Fields(string(list)) {
		if name != "busybox" {
			files = append(files, applet("bin/"+name))
		}
	}
	return files, nil
}

func hard(name string) File { return File{Name: name, Mode: 0o755, Link: "bin/busybox"} }

func absolute(name string) File {
	return File{Name: name, Mode: fs.ModeSymlink | 0o777, Target: "/bin/busybox"}
}

// suites makes the images of the CRI suites.
type suites struct {
	base    []File // the whole of busybox
	program []byte // of integration/cmd/standin
}

func (s suites) image(name string, config v1.Config, layers ...[]File) Image {
	config.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	if config.Cmd == nil && config.Entrypoint == nil {
		config.Cmd = []string{"/bin/sh"}
	}
	return Image{Name: name, Config: config, Layers: append([][]File{s.base}, layers...)}
}

// standin is the stand-in under that path.
func (s suites) standin(path string, mode fs.FileMode) []File {
	return []File{{Name: path, Mode: mode, Data: s.program}}
}

// server is an image with a web server of that name. Its process says that it is a master.
func (s suites) server(name, program string, address ...string) Image {
	entry := append([]string{"/usr/sbin/" + program, "master process"}, address...)
	return s.image(name, v1.Config{Entrypoint: entry}, s.standin("usr/sbin/"+program, 0o755))
}

// numbered is busybox with a file of its own, so that no two images are the same.
func (s suites) numbered(name, content string) Image {
	return s.image(name, v1.Config{}, []File{{Name: "etc/number", Mode: 0o644, Data: []byte(content)}})
}

// pause is an image without anything but the process that does nothing.
func (s suites) pause(name string) Image {
	number := File{Name: "number", Mode: 0o644, Data: []byte(name)}
	return Image{Name: name, Config: v1.Config{Entrypoint: []string{"/pause"}},
		Layers: [][]File{append(s.standin("pause", 0o755), number)}}
}

// ForCritest answers the images of critest by their repositories, without the hosts of registries.
// standin is the path of the built program.
func ForCritest(standin string) ([]Image, error) {
	s, err := newSuites(standin, hard)
	if err != nil {
		return nil, err
	}
	const e2e, staging = "e2e-test-images/", "k8s-staging-cri-tools/"
	user := func(name, user string) Image { return s.image(staging+name, v1.Config{User: user}) }
	groups := []File{
		{Name: "etc/passwd", Mode: 0o644,
			Data: []byte("root:x:0:0:root:/root:/bin/sh\ndefault-user:x:1000:1000::/home:/bin/sh\n")},
		{Name: "etc/group", Mode: 0o644,
			Data: []byte("root:x:0:\ndefault-user:x:1000:\ngroup-defined-in-image:x:50000:default-user\n")},
	}
	all := []Image{
		s.image(e2e+"busybox:1.29-2", v1.Config{}, s.standin("bin/ipcs", 0o755), s.standin("bin/pgrep", 0o755)),
		s.server(e2e+"nginx:1.14-2", "nginx"),
		s.server(e2e+"httpd:2.4.39-4", "httpd"),
		s.image(e2e+"nonewprivs:1.3", v1.Config{Entrypoint: []string{"/nnp"}}, s.standin("nnp", fs.ModeSetuid|0o755)),
		s.server(staging+"hostnet-nginx-amd64:latest", "nginx", ":12003"),
		user("test-image-user-uid:latest", "1002"), user("test-image-user-username:latest", "www-data"),
		user("test-image-user-uid-group:latest", "1003:users"), user("test-image-user-username-group:latest", "www-data:100"),
		s.image(staging+"test-image-predefined-group:latest", v1.Config{User: "1000"}, groups),
		s.pause("pause:3.9"),
	}
	for _, name := range strings.Fields("test-image-latest:latest test-image-tag:test test-image-tag:all " +
		"test-image-1:latest test-image-2:latest test-image-3:latest") {
		all = append(all, s.numbered(staging+name, name))
	}
	for _, tag := range []string{"1", "2", "3"} {
		all = append(all, s.numbered(staging+"test-image-tags:"+tag, "the same"))
	}
	return all, nil
}

// SuitePause is the image of the sandbox of each pod; local is where the images of containerd's suite are.
const (
	SuitePause = local + "pause:3"
	local      = "godwit/"
)

// ForContainerd answers the images of containerd's own CRI suite by their repositories, and which of the suite's names
// each of them has.
func ForContainerd(standin string) (all []Image, names map[string]string, err error) {
	s, err := newSuites(standin, absolute)
	if err != nil {
		return nil, nil, err
	}
	content := []byte("test_content\n")
	nobody := []File{{Name: "test_dir", Mode: fs.ModeDir | 0o755, UID: 65534, GID: 65534}}
	volumes := []File{
		{Name: "test_dir", Mode: fs.ModeDir | 0o755}, {Name: "test_dir/test_file", Mode: 0o644, Data: content},
		{Name: "C:", Mode: fs.ModeDir | 0o755}, {Name: "C:/weird_test_dir", Mode: fs.ModeDir | 0o755},
		{Name: "C:/weird_test_dir/weird_test_file", Mode: 0o644, Data: content},
		{Name: ":colon_prefixed", Mode: fs.ModeDir | 0o755},
		{Name: ":colon_prefixed/colon_prefixed_file", Mode: 0o644, Data: content},
	}
	all = []Image{
		s.image(local+"alpine:3", v1.Config{}),
		s.numbered(local+"busybox:1", "busybox"),
		s.pause(SuitePause),
		s.image(local+"consumer:1", v1.Config{Entrypoint: []string{"/bin/sleep", "1000"}},
			s.standin("usr/sbin/stress", 0o755)),
		s.image(local+"volume-copy-up:2", v1.Config{Volumes: map[string]struct{}{"/test_dir": {},
			"C:/weird_test_dir": {}, "/:colon_prefixed": {}}}, volumes),
		s.image(local+"volume-ownership:2", v1.Config{Volumes: map[string]struct{}{"/test_dir": {}}}, nobody),
		s.server(local+"nginx:1", "nginx"),
	}
	return all, map[string]string{
		"Alpine": all[0].Name, "BusyBox": all[1].Name, "Pause": all[2].Name, "ResourceConsumer": all[3].Name,
		"VolumeCopyUp": all[4].Name, "VolumeOwnership": all[5].Name, "Nginx": all[6].Name,
	}, nil
}

func newSuites(standin string, applet func(name string) File) (s suites, err error) {
	if s.program, err = os.ReadFile(standin); err != nil {
		return s, fmt.Errorf("read stand-in: %w", err)
	}
	s.base, err = userland(applet)
	return s, err
}
