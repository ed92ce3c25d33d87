package harness

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// Registry is the kind of registry on the wire.
type Registry int

// The kinds.
const (
	NoRegistry   Registry = iota
	PlainHTTP             // no TLS, no credentials
	TLSBasicAuth          // HTTPS with a CA of our own; User and Password are needed
	Direct                // PlainHTTP without a door, whose copying who measures would measure too
)

// User and Password of TLSBasicAuth; the nodes have them in their docker configuration.
const (
	User     = "godwit"
	Password = "bar-tailed"
	// htpasswd is bcrypt of the password, made once: tests need no tool for it.
	htpasswd = "godwit:$2a$05$Kmf4q8sOSVjLEFfbAMIq0.4VINBYhocnrrmnuXkaRGHmxsLihE0OW\n"
)

const (
	registryPort = "5000"
	// RegistryHost is the registry as nodes name it, Repository where snapshots go.
	RegistryHost = Gateway + ":" + registryPort
	Repository   = RegistryHost + "/godwit"
	backend      = "127.0.0.1:5001" // distribution itself, on the wire's own loopback
)

func (r Registry) godwitConfig(dir string) string {
	switch r {
	case PlainHTTP, Direct:
		return fmt.Sprintf("[registry]\nrepository = %q\nplain_http = true\n", Repository)
	case TLSBasicAuth:
		return fmt.Sprintf("[registry]\nrepository = %q\nca_file = %q\n", Repository, filepath.Join(dir, "ca.crt"))
	}
	return ""
}

func (r Registry) dockerConfig() string {
	if r != TLSBasicAuth {
		return "{}\n"
	}
	auth := base64.StdEncoding.EncodeToString([]byte(User + ":" + Password))
	return fmt.Sprintf("{\"auths\": {%q: {\"auth\": %q}}}\n", RegistryHost, auth)
}

// address is where distribution listens.
func (r Registry) address() string {
	if r == Direct {
		return RegistryHost
	}
	return backend
}

// startRegistry runs distribution on the wire. Its clients go through a door that counts and can fail.
func (h *Harness) startRegistry(ctx context.Context) error {
	kind := h.opts.Registry
	if kind == NoRegistry {
		return nil
	}
	config := fmt.Sprintf("version: 0.1\nlog: {level: info}\nstorage: {filesystem: {rootdirectory: %s/registry}, "+
		"delete: {enabled: true}}\n"+
		"http: {addr: '%s', relativeurls: true}\n", h.Dir, kind.address())
	if kind == TLSBasicAuth {
		if err := os.WriteFile(filepath.Join(h.Dir, "htpasswd"), []byte(htpasswd), 0o600); err != nil {
			return err
		}
		config += fmt.Sprintf("auth: {htpasswd: {realm: godwit, path: %s/htpasswd}}\n", h.Dir)
	}
	file := filepath.Join(h.Dir, "registry.yml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return err
	}
	h.onClose(func() error { return h.Registry.Stop() })
	if err := h.ServeRegistry(ctx); err != nil {
		return err
	}
	if kind == Direct {
		return nil
	}
	return h.openDoor(kind)
}

// ServeRegistry starts the registry, also again after a Kill.
func (h *Harness) ServeRegistry(ctx context.Context) (err error) {
	cmd := exec.CommandContext(context.WithoutCancel(ctx), h.lookPath(cmp.Or(h.opts.Server, "registry")), "serve",
		filepath.Join(h.Dir, "registry.yml"))
	cmd.Env = append(os.Environ(), "OTEL_TRACES_EXPORTER=none")
	if h.Registry, err = h.spawn(h.wire, "registry.log", cmd); err != nil {
		return err
	}
	return h.Registry.ready(ctx, startTimeout(), func(ctx context.Context) error {
		c, err := h.Dial(ctx, "tcp", h.opts.Registry.address())
		if err == nil {
			c.Close()
		}
		return err
	})
}

// openDoor listens where the nodes look for the registry.
func (h *Harness) openDoor(kind Registry) error {
	var secure *tls.Config
	if kind == TLSBasicAuth {
		cert, err := issue(filepath.Join(h.Dir, "ca.crt"), net.ParseIP(Gateway))
		if err != nil {
			return fmt.Errorf("make registry certificate: %w", err)
		}
		secure = &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}
	}
	h.Door = newDoor(backend, h.Dial)
	h.plug = func() error {
		l, err := h.Listen(RegistryHost)
		if err != nil {
			return err
		}
		if secure != nil {
			l = tls.NewListener(l, secure)
		}
		server := &http.Server{Handler: h.Door, ReadHeaderTimeout: 10 * time.Second}
		go func() { _ = server.Serve(l) }()
		h.unplug = server.Close
		return nil
	}
	h.onClose(func() error { return h.unplug() })
	h.unplug = func() error { return nil }
	return h.plug()
}

// Unplug closes the registry's port and all connections to it, until Plug.
func (h *Harness) Unplug() error { return h.unplug() }

// Plug undoes Unplug.
func (h *Harness) Plug() error { return h.plug() }

// Blob is the file that the registry keeps a blob or a manifest in.
func (h *Harness) Blob(digest string) string {
	algorithm, hex, _ := strings.Cut(digest, ":")
	return filepath.Join(h.Dir, "registry/docker/registry/v2/blobs", algorithm, hex[:2], hex, "data")
}

// Plant puts a blob or a manifest into a repository past the registry's API.
func (h *Harness) Plant(repository, digest string, data []byte, manifest bool) error {
	algorithm, hex, _ := strings.Cut(digest, ":")
	kind := "_layers"
	if manifest {
		kind = "_manifests/revisions"
	}
	link := filepath.Join(h.repository(repository), kind, algorithm, hex, "link")
	for path, content := range map[string][]byte{h.Blob(digest): data, link: []byte(digest)} {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, content, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// repository is the directory that the registry keeps a repository in.
func (h *Harness) repository(name string) string {
	return filepath.Join(h.Dir, "registry/docker/registry/v2/repositories", strings.TrimPrefix(name, RegistryHost+"/"))
}

// Manifests answers the digests of all manifests in a repository of the registry, tagged
// or not.
func (h *Harness) Manifests(repository string) ([]string, error) {
	files, err := filepath.Glob(filepath.Join(h.repository(repository), "_manifests/revisions/sha256/*/link"))
	for i, f := range files {
		files[i] = "sha256:" + filepath.Base(filepath.Dir(f))
	}
	return files, err
}
