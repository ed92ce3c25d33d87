package images

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// Names of the images that are not busybox.
const (
	Debian  = "godwit.test/debian:12"
	Redis   = "godwit.test/redis:7"
	Python  = "godwit.test/python:3"
	Scratch = "godwit.test/scratch:1"
	// Workload is the probe among the files of all of them.
	Workload = "godwit.test/workload:1"
)

// What a shell, its tools and dpkg need, with all libraries.
var debianPackages = strings.Fields("base-files bash coreutils dpkg tar libacl1 libattr1 libbz2-1.0 libc6 libgcc-s1 " +
	"libgmp10 liblzma5 libmd0 " +
	"libpcre2-8-0 libselinux1 libtinfo6 libzstd1 zlib1g")

var redisPackages = strings.Fields("redis-server redis-tools libatomic1 libcap2 libgcrypt20 libgpg-error0 " +
	"libjemalloc2 liblz4-1 liblzf1 libssl3 libstdc++6 libsystemd0")

// PythonService answers every request with its path and the number of requests so far.
const PythonService = `
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    count = 0
    def do_GET(self):
        Handler.count += 1
        body = ("%s %d\n" % (self.path, Handler.count)).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
http.server.ThreadingHTTPServer(("", 80), Handler).serve_forever()
`

// Real answers images with the programs that people run. They are a minimal Debian, and redis
// and a Python service on top of it, from Debian's packages, kept in cache. The last one is a
// static binary (program) with nothing else.
func Real(ctx context.Context, cache, program string) ([]Image, error) {
	dir := packages(cache)
	base, err := debian(ctx, dir)
	if err != nil {
		return nil, err
	}
	redis, err := dir.layer(ctx, redisPackages...)
	if err != nil {
		return nil, err
	}
	redis = append(redis, File{Name: "data", Mode: fs.ModeDir | 0o777})
	python, err := python(ctx, dir)
	if err != nil {
		return nil, err
	}
	binary, err := os.ReadFile(program)
	if err != nil {
		return nil, fmt.Errorf("read program: %w", err)
	}
	env := []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	return []Image{
		{Name: Debian, Layers: [][]File{base}, Config: v1.Config{Env: env, Cmd: []string{"/bin/bash"}}},
		{Name: Redis, Layers: [][]File{base, redis}, Config: v1.Config{
			Env: env, WorkingDir: "/data", User: "1000:1000", Entrypoint: []string{"redis-server"},
			Cmd: []string{"--protected-mode", "no", "--save", "", "--appendonly", "yes"},
		}},
		{Name: Python, Layers: [][]File{base, python},
			Config: v1.Config{Env: env, Cmd: []string{"python3", "/srv/service.py"}, StopSignal: "SIGINT"}},
		{Name: Scratch, Layers: [][]File{{{Name: "program", Mode: 0o755, Data: binary}}},
			Config: v1.Config{Entrypoint: []string{"/program"}}},
	}, nil
}

// WithWorkload answers the image of a VM with much in its memory.
func WithWorkload(ctx context.Context, cache, probe string) (Image, error) {
	all, err := Real(ctx, cache, probe)
	if err != nil {
		return Image{}, err
	}
	workload, err := os.ReadFile(probe)
	if err != nil {
		return Image{}, fmt.Errorf("read probe: %w", err)
	}
	layers := append([][]File(nil), all[1].Layers...)
	layers = append(layers, all[2].Layers[1], []File{{Name: "bin/probe", Mode: 0o755, Data: workload}})
	return Image{Name: Workload, Layers: layers, Config: v1.Config{Env: all[0].Config.Env,
		Entrypoint: []string{"/bin/probe"}}}, nil
}

func debian(ctx context.Context, dir packages) ([]File, error) {
	files, err := dir.layer(ctx, debianPackages...)
	if err != nil {
		return nil, err
	}
	status, err := dir.status(ctx, debianPackages...)
	if err != nil {
		return nil, err
	}
	return append(files,
		File{Name: "bin/sh", Mode: fs.ModeSymlink | 0o777, Target: "bash"},
		File{Name: "dev", Mode: fs.ModeDir | 0o755}, File{Name: "proc", Mode: fs.ModeDir | 0o555},
		File{Name: "sys", Mode: fs.ModeDir | 0o555},
		File{Name: "etc/passwd", Mode: 0o644,
			Data: []byte("root:x:0:0:root:/root:/bin/bash\nguest:x:1000:1000:guest:/data:/bin/bash\n")},
		File{Name: "etc/group", Mode: 0o644, Data: []byte("root:x:0:\nguest:x:1000:\n")},
		File{Name: "var/lib/dpkg/status", Mode: 0o644, Data: status},
		File{Name: "var/lib/dpkg/info", Mode: fs.ModeDir | 0o755},
	), nil
}

var interpreter = regexp.MustCompile(`Depends: (python3\.\d+)-minimal`)

// python takes the interpreter that this Debian's python3 is.
func python(ctx context.Context, dir packages) ([]File, error) {
	out, err := exec.CommandContext(ctx, "apt-cache", "depends", "python3-minimal").Output()
	if err != nil {
		return nil, fmt.Errorf("find python3: %w", err)
	}
	m := interpreter.FindSubmatch(out)
	if m == nil {
		return nil, fmt.Errorf("find python3: python3-minimal depends on\n%s", out)
	}
	version := string(m[1])
	files, err := dir.layer(ctx, "python3-minimal", version+"-minimal", "lib"+version+"-minimal", "lib"+version+"-stdlib",
		"libexpat1")
	if err != nil {
		return nil, err
	}
	return append(files, File{Name: filepath.Join("srv", "service.py"), Mode: 0o644, Data: []byte(PythonService)}), nil
}
