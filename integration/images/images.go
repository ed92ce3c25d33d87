// Package images makes the container images of the tests without any registry: OCI
// layouts in a tar file that `ctr images import` reads.
package images

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// Names of the images; .test is reserved and names no registry.
const (
	Busybox      = "godwit.test/busybox:1"
	Probe        = "godwit.test/probe:1"
	NoEntrypoint = "godwit.test/noentrypoint:1"
)

// File of a layer. Mode carries the type. The types are a directory, a symbolic link with
// Target, a character device with Major and Minor, and a named pipe. A regular file has Data, or
// the content of the file From. Link makes it one more name of an earlier file.
type File struct {
	Name         string
	Mode         fs.FileMode
	Data         []byte
	From         string
	Target       string
	Link         string
	UID, GID     int
	ModTime      time.Time
	Xattrs       map[string]string
	Major, Minor int64
}

// Image is one image to be made.
type Image struct {
	Name   string
	Layers [][]File
	Config v1.Config
}

const busyboxPath = "/bin/busybox" // of Debian's busybox-static

// applets that the tests call; each is a link to busybox.
var applets = strings.Fields("sh cat echo ls sleep mkdir rm ln cp mv id env pwd stat head tail grep sed awk tr wc " +
	"seq dd sync true false " +
	"kill ps mount umount df free uname hostname date ip ping wget nc nslookup md5sum sha256sum touch chmod chown tee " +
	"test yes od stty tty")

func rootfs() ([]File, error) {
	busybox, err := os.ReadFile(busyboxPath)
	if err != nil {
		return nil, fmt.Errorf("read busybox (Debian package busybox-static): %w", err)
	}
	files := []File{
		{Name: "bin", Mode: fs.ModeDir | 0o755}, {Name: "etc", Mode: fs.ModeDir | 0o755},
		{Name: "dev", Mode: fs.ModeDir | 0o755}, {Name: "proc", Mode: fs.ModeDir | 0o555},
		{Name: "sys", Mode: fs.ModeDir | 0o555},
		{Name: "run", Mode: fs.ModeDir | 0o755}, {Name: "root", Mode: fs.ModeDir | 0o700},
		{Name: "tmp", Mode: fs.ModeDir | fs.ModeSticky | 0o777},
		{Name: "etc/passwd", Mode: 0o644,
			Data: []byte("root:x:0:0:root:/root:/bin/sh\nguest:x:1000:1000:guest:/tmp:/bin/sh\n")},
		{Name: "etc/group", Mode: 0o644, Data: []byte("root:x:0:\nguest:x:1000:\nstaff:x:50:guest\n")},
		{Name: "bin/busybox", Mode: 0o755, Data: busybox},
	}
	for _, a := range applets {
		files = append(files, File{Name: "bin/" + a, Mode: fs.ModeSymlink | 0o777, Target: "busybox"})
	}
	return files, nil
}

// env is what the processes of each image begin with.
var env = []string{"PATH=/usr/local/bin:/usr/bin:/bin"}

// Shell is the image Busybox alone, for a registry.
func Shell() (v1.Image, error) {
	base, err := rootfs()
	if err != nil {
		return nil, err
	}
	return Image{Name: Busybox, Layers: [][]File{base}, Config: v1.Config{Env: env, Cmd: []string{"/bin/sh"}}}.Build()
}

// Standard answers the images that most tests need. probe is the path of the built
// workload.
func Standard(probe string) ([]Image, error) {
	base, err := rootfs()
	if err != nil {
		return nil, err
	}
	workload, err := os.ReadFile(probe)
	if err != nil {
		return nil, fmt.Errorf("read probe: %w", err)
	}
	layer := []File{{Name: "bin/probe", Mode: 0o755, Data: workload}, {Name: "data", Mode: fs.ModeDir | 0o755}}
	return []Image{
		{Name: Busybox, Layers: [][]File{base}, Config: v1.Config{Env: env, Cmd: []string{"/bin/sh"}}},
		{Name: Probe, Layers: [][]File{base, layer}, Config: v1.Config{Env: env, Entrypoint: []string{"/bin/probe"}}},
		{Name: NoEntrypoint, Layers: [][]File{base}, Config: v1.Config{Env: env}},
	}, nil
}

// Write makes one tar file with an OCI layout that holds all images under their names.
func Write(path string, all ...Image) error {
	dir, err := os.MkdirTemp(filepath.Dir(path), "layout")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	idx := v1.ImageIndex(empty.Index)
	for _, i := range all {
		img, err := i.Build()
		if err != nil {
			return fmt.Errorf("build image %s: %w", i.Name, err)
		}
		idx = mutate.AppendManifests(idx, mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{
			Annotations: map[string]string{"io.containerd.image.name": i.Name},
			Platform:    &v1.Platform{OS: "linux", Architecture: "amd64"},
		}})
	}
	if _, err := layout.Write(dir, idx); err != nil {
		return fmt.Errorf("write layout: %w", err)
	}
	return archive(path, dir)
}

// Build makes the image in memory.
func (i Image) Build() (v1.Image, error) {
	img, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{OS: "linux", Architecture: "amd64", Config: i.Config})
	if err != nil {
		return nil, err
	}
	for _, files := range i.Layers {
		l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return layerTar(files), nil })
		if err != nil {
			return nil, err
		}
		if img, err = mutate.AppendLayers(img, l); err != nil {
			return nil, err
		}
	}
	return img, nil
}

// layerTar is the layer as a stream: a file of it may be larger than memory.
func layerTar(files []File) io.ReadCloser {
	r, to := io.Pipe()
	go func() {
		w := tar.NewWriter(to)
		for _, f := range files {
			if err := f.write(w); err != nil {
				to.CloseWithError(fmt.Errorf("tar %s: %w", f.Name, err))
				return
			}
		}
		to.CloseWithError(w.Close())
	}()
	return r
}

func (f File) write(w *tar.Writer) error {
	h, content := f.header(), io.Reader(bytes.NewReader(f.Data))
	if f.From != "" {
		from, err := os.Open(f.From)
		if err != nil {
			return err
		}
		defer from.Close()
		info, err := from.Stat()
		if err != nil {
			return err
		}
		h.Size, content = info.Size(), from
	}
	if err := w.WriteHeader(h); err != nil {
		return err
	}
	_, err := io.Copy(w, content)
	return err
}

func (f File) header() *tar.Header {
	h := &tar.Header{
		Name: f.Name, Mode: int64(f.Mode.Perm()), Size: int64(len(f.Data)), Typeflag: tar.TypeReg, Linkname: f.Target,
		Uid: f.UID, Gid: f.GID, ModTime: f.ModTime, Devmajor: f.Major, Devminor: f.Minor,
	}
	switch {
	case f.Link != "":
		h.Typeflag, h.Linkname = tar.TypeLink, f.Link
	case f.Mode.IsDir():
		h.Typeflag = tar.TypeDir
	case f.Mode&fs.ModeSymlink != 0:
		h.Typeflag = tar.TypeSymlink
	case f.Mode&fs.ModeCharDevice != 0:
		h.Typeflag = tar.TypeChar
	case f.Mode&fs.ModeNamedPipe != 0:
		h.Typeflag = tar.TypeFifo
	}
	if f.Mode&fs.ModeSticky != 0 {
		h.Mode |= 0o1000
	}
	if f.Mode&fs.ModeSetuid != 0 {
		h.Mode |= 0o4000
	}
	for name, value := range f.Xattrs {
		if h.PAXRecords == nil {
			h.PAXRecords = map[string]string{}
		}
		h.PAXRecords["SCHILY.xattr."+name] = value
	}
	return h
}

func archive(path, dir string) (err error) {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	w := tar.NewWriter(f)
	if err := w.AddFS(os.DirFS(dir)); err != nil {
		f.Close()
		return fmt.Errorf("tar %s: %w", dir, err)
	}
	if err := w.Close(); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}
