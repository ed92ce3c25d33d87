package client

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	dockerhosts "github.com/containerd/containerd/v2/core/remotes/docker/config"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	dockerconfig "github.com/docker/cli/cli/config"
	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
)

// Image is one that containerd has.
type Image struct {
	Name    string // with registry and tag or digest
	Digest  string // of its manifest or index
	Size    int64  // bytes of the content that is here
	Created time.Time
}

// PullOptions say how an image is fetched.
type PullOptions struct {
	Snapshotter string // empty: containerd's default of the namespace
	Insecure    bool   // TLS is not verified, and a registry without TLS is taken
	Progress    func(PullProgress)
}

// ImageName is the full name of an image as docker reads it: with the registry that alpine has, and the tag latest.
func ImageName(image string) (string, error) {
	named, err := reference.ParseDockerRef(image)
	if err != nil {
		return "", fmt.Errorf("image %q: %v. Write it as [REGISTRY/]NAME[:TAG]: %w", image, err, errdefs.ErrInvalidArgument)
	}
	return named.String(), nil
}

// Pull fetches an image and unpacks it. An interrupted Pull leaves no lease: containerd removes what had come.
func (c *Client) Pull(ctx context.Context, image string, o PullOptions) (*Image, error) {
	full, err := ImageName(image)
	if err != nil {
		return nil, err
	}
	ctx, done, err := c.leased(ctx, c.namespace)
	if err != nil {
		return nil, err
	}
	defer done()
	img, err := c.pull(ctx, full, o)
	if err != nil {
		return nil, err
	}
	return imageOf(ctx, img)
}

// leased is ctx of a namespace with a lease, which done ends also after an interrupt.
func (c *Client) leased(ctx context.Context, namespace string) (_ context.Context, done func(), err error) {
	ctr, err := c.Containerd()
	if err != nil {
		return nil, nil, err
	}
	ctx = namespaces.WithNamespace(ctx, namespace)
	service := ctr.LeasesService()
	lease, err := service.Create(ctx, leases.WithRandomID(), leases.WithExpiration(leaseLife))
	if err != nil {
		return nil, nil, c.containerdError("take a lease", err)
	}
	return leases.WithLease(ctx, lease.ID), func() {
		after, cancel := cleaning(ctx)
		defer cancel()
		_ = service.Delete(after, lease)
	}, nil
}

func (c *Client) pull(ctx context.Context, image string, o PullOptions) (containerd.Image, error) {
	ctr, err := c.Containerd()
	if err != nil {
		return nil, err
	}
	watch := newPullWatch(ctr.ContentStore(), o.Progress)
	pulling, stop := watch.start(ctx)
	defer stop()
	img, err := ctr.Pull(pulling, image, containerd.WithPullUnpack, containerd.WithPullSnapshotter(o.Snapshotter),
		containerd.WithResolver(c.resolver(ctx, o.Insecure)), containerd.WithImageHandler(watch))
	if err != nil {
		if cause := context.Cause(pulling); cause != nil && ctx.Err() == nil {
			err = cause
		} else {
			err = pullError(image, err)
		}
		return nil, fmt.Errorf("pull image %s: %w", image, err)
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return img, nil
}

// pullError gives what a registry has said a class and a remedy.
func pullError(image string, err error) error {
	text := err.Error()
	switch {
	case errdefs.IsNotFound(err):
		return &Problem{What: "There is no image " + image + ".", Why: "The registry does not have it, or wants a login.",
			Remedy: "To go on, look at its name and tag. To give a login: docker login.", Cause: err}
	case strings.Contains(text, "server gave HTTP response to HTTPS client"):
		return fmt.Errorf("%w. For a registry without TLS: --insecure-registry: %w", err, errdefs.ErrFailedPrecondition)
	}
	return unwrapped(err)
}

// resolver asks registries as hosts.toml says, with docker's credentials.
func (c *Client) resolver(ctx context.Context, insecure bool) remotes.Resolver {
	o := dockerhosts.HostOptions{Credentials: c.credentials}
	if cfg, err := c.load(); err == nil && cfg.Registry.HostsDir != "" {
		o.HostDir = dockerhosts.HostDirFromRoot(cfg.Registry.HostsDir)
	}
	if insecure {
		o.DefaultTLS = &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12}
		o.UpdateClient = func(client *http.Client) error {
			client.Transport = docker.NewHTTPFallback(client.Transport)
			return nil
		}
	}
	return docker.NewResolver(docker.ResolverOptions{Hosts: dockerhosts.ConfigureHosts(ctx, o)})
}

func (c *Client) credentials(host string) (user, secret string, err error) {
	dir := ""
	if cfg, err := c.load(); err == nil {
		dir = cfg.Registry.DockerConfig
	}
	file, err := dockerconfig.Load(dir)
	if err != nil {
		return "", "", fmt.Errorf("docker's configuration: %w", err)
	}
	if strings.HasSuffix(host, strings.TrimPrefix(name.DefaultRegistry, "index")) {
		host = authn.DefaultAuthKey // Docker Hub has one name in images, and another one in docker's configuration
	}
	auth, err := file.GetAuthConfig(host)
	if err != nil {
		return "", "", fmt.Errorf("credentials for %s: %w", host, err)
	}
	if auth.IdentityToken != "" {
		return "", auth.IdentityToken, nil
	}
	return auth.Username, auth.Password, nil
}

// Images lists the images of the client's namespace, by name.
func (c *Client) Images(ctx context.Context) ([]Image, error) {
	ctr, err := c.Containerd()
	if err != nil {
		return nil, err
	}
	ctx = namespaces.WithNamespace(ctx, c.namespace)
	list, err := ctr.ListImages(ctx)
	if err != nil {
		return nil, c.containerdError("list images", err)
	}
	all := make([]Image, 0, len(list))
	for _, img := range list {
		one, err := imageOf(ctx, img)
		if err != nil {
			return nil, c.containerdError("size of image "+img.Name(), err)
		}
		all = append(all, *one)
	}
	slices.SortFunc(all, func(a, b Image) int { return strings.Compare(a.Name, b.Name) })
	return all, nil
}

// imageOf measures an image. One of which a part is not here has the size of what is.
func imageOf(ctx context.Context, img containerd.Image) (*Image, error) {
	size, err := img.Size(ctx)
	if err != nil && !errdefs.IsNotFound(err) {
		return nil, err
	}
	return &Image{Name: img.Name(), Digest: img.Target().Digest.String(), Size: size,
		Created: img.Metadata().CreatedAt}, nil
}

// cleaning is a context for what has to be done also after an interrupt.
func cleaning(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), cleanTimeout)
}

// leaseLife is when containerd ends the lease of a client that was killed.
const leaseLife = 24 * time.Hour

// cleanTimeout bounds the removal of what was made in vain.
const cleanTimeout = 30 * time.Second
