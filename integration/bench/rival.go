package bench

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/zeebo/xxh3"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"godwit.dev/godwit/integration/harness"
)

// rival is what people do without godwit: the RAM file through zstd, one blob, pushed with
// crane, and back. It is given what it could be better at: the digest is made while zstd
// writes, on the way back crane and zstd run at the same time, and no VM is started.
type rival struct {
	*bench
	dir   string
	plain string
}

// newRival copies the pages in use of the VM that runs, which no figure waits for.
func (b *bench) newRival() (*rival, error) {
	dir, err := os.MkdirTemp("/dev/shm", "bench")
	if err != nil {
		return nil, err
	}
	r := &rival{bench: b, dir: dir, plain: filepath.Join(dir, "ram")}
	if _, err := b.copyRAM(r.plain); err != nil {
		r.close()
		return nil, fmt.Errorf("copy RAM: %w", err)
	}
	return r, nil
}

func (r *rival) close() { os.RemoveAll(r.dir) }

const rivalRepository = harness.RegistryHost + "/rival"

func (r *rival) run(ctx context.Context) error {
	sent, err := r.sending(ctx)
	if err != nil {
		return err
	}
	begun := time.Now()
	blob, err := r.push(ctx)
	if err != nil {
		return err
	}
	bytes, push, err := sent(begun)
	if err != nil {
		return fmt.Errorf("baseline: %w", err)
	}
	if err := os.Remove(r.plain); err != nil {
		return err
	}
	there := push.Manifest.Sub(begun)
	r.note(snapshotName("baseline"), ms(there))
	r.note(snapshotName("baseline_bytes"), bytes/mib)
	begun = time.Now()
	_, err = r.node.Run(ctx, "bash", "-c", `set -o pipefail; crane blob --insecure "$1" | zstd -q -d -o "$2"`, "bash",
		rivalRepository+"@"+blob, r.plain)
	if err != nil {
		return err
	}
	back := time.Since(begun)
	r.note(snapshotName("baseline_back"), ms(back))
	r.say("baseline: %.0f ms to the manifest, %.1f MiB sent, back in %.0f ms", ms(there), bytes/mib, ms(back))
	return nil
}

// push answers the digest of the blob.
func (r *rival) push(ctx context.Context) (string, error) {
	layout := filepath.Join(r.dir, "layout")
	blobs := filepath.Join(layout, "blobs", "sha256")
	if err := os.MkdirAll(blobs, 0o755); err != nil {
		return "", err
	}
	ram, err := r.compress(ctx, filepath.Join(r.dir, "ram.zst"), blobs)
	if err != nil {
		return "", err
	}
	add := func(kind, data string) (string, error) {
		d := sha256.Sum256([]byte(data))
		name := hex.EncodeToString(d[:])
		return fmt.Sprintf(`{"mediaType":%q,"digest":"sha256:%s","size":%d}`, kind, name, len(data)),
			os.WriteFile(filepath.Join(blobs, name), []byte(data), 0o644)
	}
	config, err := add("application/vnd.oci.image.config.v1+json",
		`{"architecture":"amd64","os":"linux","config":{},"rootfs":{"type":"layers","diff_ids":[]}}`)
	if err != nil {
		return "", err
	}
	const manifestType = "application/vnd.oci.image.manifest.v1+json"
	manifest, err := add(manifestType,
		fmt.Sprintf(`{"schemaVersion":2,"mediaType":%q,"config":%s,"layers":[`+
			`{"mediaType":"application/vnd.godwit.bench.ram","digest":"sha256:%s","size":%d}]}`,
			manifestType, config, ram.Digest, ram.Size))
	if err != nil {
		return "", err
	}
	for name, data := range map[string]string{"oci-layout": `{"imageLayoutVersion":"1.0.0"}`,
		"index.json": `{"schemaVersion":2,"manifests":[` + manifest + `]}`} {
		if err := os.WriteFile(filepath.Join(layout, name), []byte(data), 0o644); err != nil {
			return "", err
		}
	}
	_, err = r.node.Run(ctx, "crane", "push", "--insecure", layout, rivalRepository+":1")
	return "sha256:" + ram.Digest, err
}

// packed is the blob.
type packed struct {
	Digest string
	Size   int64
}

// compress writes the blob into a directory, under its digest.
func (r *rival) compress(ctx context.Context, file, blobs string) (packed, error) {
	out, err := os.Create(file)
	if err != nil {
		return packed{}, err
	}
	defer out.Close()
	h := sha256.New()
	cmd := r.node.Command(ctx, "zstd", "-q", "-1", "-T0", "-c", r.plain)
	stream, err := cmd.StdoutPipe()
	if err != nil {
		return packed{}, err
	}
	if err := r.node.Enter(cmd.Start); err != nil {
		return packed{}, fmt.Errorf("start zstd: %w", err)
	}
	n, err := io.CopyBuffer(io.MultiWriter(out, h), stream, make([]byte, 1<<20))
	if e := cmd.Wait(); err == nil && e != nil {
		err = fmt.Errorf("zstd: %w", e)
	}
	if err != nil {
		return packed{}, err
	}
	p := packed{hex.EncodeToString(h.Sum(nil)), n}
	return p, os.Rename(file, filepath.Join(blobs, p.Digest))
}

// floor reads and hashes every page in use of the node's one RAM file, on all cores.
func (b *bench) floor() (time.Duration, error) {
	path, err := b.ramFile()
	if err != nil {
		return 0, err
	}
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	begun := time.Now()
	st, err := f.Stat()
	if err != nil {
		return 0, err
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, int(st.Size()), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return 0, fmt.Errorf("map %s: %w", path, err)
	}
	defer func() { _ = unix.Munmap(mem) }()
	parts := make(chan []byte, 64)
	var g errgroup.Group
	for range b.result.Machine.CPUs {
		g.Go(func() error {
			for p := range parts {
				if err := unix.Madvise(p, unix.MADV_POPULATE_READ); err != nil {
					return err
				}
				for ; len(p) >= 4096; p = p[4096:] {
					xxh3.Hash128(p[:4096])
				}
			}
			return nil
		})
	}
	_, err = eachExtent(f, func(offset, end int64) error {
		for ; offset < end; offset += mib {
			parts <- mem[offset:min(end, offset+mib)]
		}
		return nil
	})
	close(parts)
	if e := g.Wait(); err == nil {
		err = e
	}
	return time.Since(begun), err
}
