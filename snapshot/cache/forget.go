package cache

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/containerd/errdefs"
	digest "github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"godwit.dev/godwit/snapshot/store"
)

// maxManifest bounds what is parsed here.
const maxManifest = 4 << 20

// Has reports whether a snapshot's manifest is kept and all that it lists, there or in the
// second repository. Objects of the media types without have their place elsewhere and do not
// count. What the bytes are is not looked at.
func (c *Cache) Has(repository, beside string, d digest.Digest, without ...string) bool {
	l, err := c.Join(repository, beside)
	if err != nil || l == nil {
		return false
	}
	defer l.Close()
	dir := NewDir(l.Dir, l.Shared, nil)
	data, err := dir.read(store.KeptName(store.Manifest(d.String())), maxManifest)
	if err != nil || digest.FromBytes(data) != d {
		return false
	}
	var m v1.Manifest
	if json.Unmarshal(data, &m) != nil {
		return false
	}
next:
	for _, b := range append(m.Layers, m.Config) {
		for _, t := range without {
			if b.MediaType == t {
				continue next
			}
		}
		name := store.KeptName(store.Blob(b.Digest))
		if name == "" || !dir.whole(name, b.Size) && !dir.whole(store.KeptParts+name, b.Size) {
			return false
		}
	}
	return true
}

func (d *Dir) whole(name string, size int64) bool {
	info, err := os.Lstat(d.path + "/" + name)
	if err != nil && d.beside != "" {
		info, err = os.Lstat(d.beside + "/" + name)
	}
	return err == nil && info.Mode().IsRegular() && info.Size() == size
}

// Forget deletes what is kept of a snapshot and of no other. While a job uses the repository
// nothing is deleted; eviction will.
func (c *Cache) Forget(repository string, d digest.Digest) error {
	f, err := c.locked(key(repository), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.EWOULDBLOCK) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("forget snapshot %s: %w", d, err)
	}
	defer f.Close()
	dir := NewDir(c.path(key(repository), blobs), "", nil)
	files, err := os.ReadDir(dir.path)
	if err != nil {
		return fmt.Errorf("forget snapshot %s: %w", d, err)
	}
	leaving := strings.Replace(d.String(), ":", "-", 1)
	used, manifests := map[string]bool{}, 0
	for _, e := range files {
		rest, isManifest := strings.CutPrefix(e.Name(), store.KeptManifest)
		if !isManifest {
			rest, _ = strings.CutPrefix(e.Name(), store.KeptSignature)
		}
		if rest == e.Name() || rest == leaving {
			continue
		}
		dir.uses(e.Name(), used)
		if isManifest {
			manifests++
		}
	}
	if manifests == 0 {
		err = c.delete(key(repository))
	} else {
		for _, e := range files {
			if !used[e.Name()] {
				err = errors.Join(err, os.RemoveAll(dir.path+"/"+e.Name()))
			}
		}
	}
	if err != nil {
		return fmt.Errorf("forget snapshot %s: %w", d, err)
	}
	return nil
}

// uses marks a manifest and what it lists.
func (d *Dir) uses(name string, used map[string]bool) {
	data, err := d.read(name, maxManifest)
	var m v1.Manifest
	if err != nil || json.Unmarshal(data, &m) != nil {
		return
	}
	used[name] = true
	for _, b := range append(m.Layers, m.Config) {
		blob := store.KeptName(store.Blob(b.Digest))
		used[blob], used[store.KeptParts+blob] = true, true
	}
}

// Drop deletes all of a repository. Unavailable: a job uses it.
func (c *Cache) Drop(repository string) error {
	k := key(repository)
	f, err := c.locked(k, unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if errors.Is(err, unix.EWOULDBLOCK) {
		return fmt.Errorf("drop %s from the cache: it is in use: %w", repository, errdefs.ErrUnavailable)
	}
	if err == nil {
		defer f.Close()
		err = c.delete(k)
	}
	if err != nil {
		return fmt.Errorf("drop %s from the cache: %w", repository, err)
	}
	return nil
}

// Repositories lists whose objects are kept.
func (c *Cache) Repositories() ([]string, error) {
	dirs, err := os.ReadDir(c.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list cache: %w", err)
	}
	var all []string
	for _, dir := range dirs {
		name, err := os.ReadFile(c.path(dir.Name(), nameFile))
		if err == nil && key(string(name)) == dir.Name() {
			all = append(all, string(name))
		}
	}
	return all, nil
}
