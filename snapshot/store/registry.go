package store

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"

	"github.com/containerd/errdefs"
	"github.com/google/go-containerregistry/pkg/name"
)

// Registry is a repository of an OCI registry, and of the mirrors that hosts.toml names
// for it. Names and authentication are go-containerregistry's; the calls are made here,
// because packs are sent from memory, several at once, each in one request.
type Registry struct {
	repo  name.Repository
	hosts []*host // in the order in which a download asks them; the last one is the registry itself
	keeps *host   // takes what is stored, and answers for what there is
	limit *limiter
	whole atomic.Bool // it has answered a Range with all of a blob
}

var (
	_ Store  = (*Registry)(nil)
	_ Ranger = (*Registry)(nil)
)

// NewRegistry reads the configuration and the credentials; nothing is asked of the
// registry yet.
func NewRegistry(cfg Config) (*Registry, error) {
	var opts []name.Option
	if cfg.PlainHTTP {
		opts = append(opts, name.Insecure)
	}
	repo, err := name.NewRepository(cfg.Repository, opts...)
	if err != nil {
		return nil, fmt.Errorf("registry repository %q: %w: %w", cfg.Repository, err, errdefs.ErrInvalidArgument)
	}
	endpoints, err := endpointsOf(cfg, repo.RegistryStr())
	if err != nil {
		return nil, err
	}
	r := &Registry{repo: repo, limit: newLimiter(cfg.Bandwidth)}
	for i, e := range endpoints {
		h, err := newHost(cfg, e, repo)
		if err != nil {
			return nil, err
		}
		r.hosts = append(r.hosts, h)
		if r.keeps == nil && e.push {
			r.keeps = h
		}
		h.mirror = i < len(endpoints)-1 && h != r.keeps
	}
	if r.keeps == nil {
		return nil, fmt.Errorf("registry %s: hosts.toml grants no host the capability push: %w", repo.RegistryStr(),
			errdefs.ErrFailedPrecondition)
	}
	return r, nil
}

// do sends a call to the host that keeps the repository.
func (r *Registry) do(ctx context.Context, c call) (*http.Response, error) {
	return r.keeps.do(ctx, r.limit, c)
}

// download asks one host after the other: a mirror that fails, or lacks what is asked
// for, is no answer. If none has it, the host that keeps the repository says why. What they send is verified by its
// digest; who finds it wrong rejects the host.
func (r *Registry) download(ctx context.Context, c call) (resp *http.Response, from *host, err error) {
	var kept error
	for _, h := range r.hosts {
		if !h.pull || h.mirror && h.resting() {
			continue
		}
		resp, err = h.do(ctx, r.limit, c)
		if err == nil || ctx.Err() != nil {
			return resp, h, err
		}
		if h == r.keeps {
			kept = err
		}
		if errdefs.IsUnavailable(err) {
			h.rest()
		}
	}
	if err == nil {
		err = fmt.Errorf("%s %s in %s: no host may be asked for it: %w", c.verb, c.object, r.repo,
			errdefs.ErrFailedPrecondition)
	}
	return nil, nil, cmp.Or(kept, err)
}

// mount is the query of an upload that may find its blob in another repository.
func (r *Registry) mount(c Content) string {
	from, ok := strings.CutPrefix(c.From, r.repo.RegistryStr()+"/")
	if !ok || from == r.repo.RepositoryStr() {
		return ""
	}
	return mountQuery(c.Digest, from)
}
