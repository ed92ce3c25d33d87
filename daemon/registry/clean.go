package registry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	digest "github.com/opencontainers/go-digest"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/internal/turn"
	"godwit.dev/godwit/migrate/engine"
	"godwit.dev/godwit/snapshot"
	"godwit.dev/godwit/snapshot/store"
)

// allRights are those below each prefix: records and orders may name others than the node's own.
type allRights struct {
	mu  sync.Mutex
	all map[string]*rights
}

func (a *allRights) of(repository string) *rights {
	a.mu.Lock()
	defer a.mu.Unlock()
	prefix := path.Dir(repository)
	if a.all == nil {
		a.all = map[string]*rights{}
	}
	if a.all[prefix] == nil {
		a.all[prefix] = &rights{asking: turn.New()}
	}
	return a.all[prefix]
}

// rights remembers that the store deletes nothing for this node. The first probe, at start,
// finds that for all callers that delete. Later probes find a right that was granted since.
type rights struct {
	asking turn.Turn // who waits for it has a deadline
	mu     sync.Mutex
	err    error // of the last probe or deletion that was refused
	again  time.Time
	pause  time.Duration
}

// Pauses between two probes of a store that refuses deletions.
const (
	firstProbePause = 15 * time.Second
	maxProbePause   = 10 * time.Minute
)

// probed is the repository of these questions.
const probed = "doctor"

// own is the repository of such questions below the node's own prefix; empty without a registry.
func (r *Registry) own() string { return r.Repository(&nodev1.Record{Uid: probed}) }

// rightsBound of a question for the rights.
const rightsBound = time.Minute

// ask probes the store next to a repository, and remembers what it says of deletions.
func (r *Registry) ask(ctx context.Context, repository string) (got snapshot.Rights) {
	if repository == "" {
		return got
	}
	ctx, cancel := context.WithTimeout(ctx, rightsBound)
	defer cancel()
	// The rights are those of the login with which the VM's snapshots are deleted.
	cfg, err := r.of(ctx, repository, nodev1.Use_USE_STORE)
	if err != nil {
		return snapshot.Rights{Push: err}
	}
	cfg.Repository = record.Repository(&nodev1.Record{Uid: probed}, path.Dir(repository))
	st, err := store.Open(cfg)
	if err != nil {
		return snapshot.Rights{Push: err}
	}
	rights := r.rights.of(repository)
	if err := rights.asking.Take(ctx); err != nil {
		err = fmt.Errorf("ask for the rights in %s: another question is still open: %w", repository, err)
		return snapshot.Rights{Push: err, Pull: err, Delete: err}
	}
	defer rights.asking.Give()
	got = snapshot.Probe(ctx, st, r.Config.Node)
	rights.note(got.Delete)
	return got
}

func (r *rights) note(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !snapshot.Refused(err) {
		if err == nil {
			r.err, r.pause = nil, 0
		}
		return
	}
	r.err = err
	r.pause = min(max(2*r.pause, firstProbePause), maxProbePause)
	r.again = time.Now().Add(r.pause)
}

// refused answers what the store said, and whether to ask it again.
func (r *rights) refused() (err error, ask bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err, r.err != nil && !time.Now().Before(r.again)
}

// AskRights asks for the rights once, before anybody needs them.
func (r *Registry) AskRights(ctx context.Context) {
	repository := r.own()
	got := r.ask(ctx, repository)
	if err := got.Err(); err != nil && ctx.Err() == nil {
		slog.WarnContext(ctx, "rights are missing in the store", "repository", repository, "push", text(got.Push), "pull",
			text(got.Pull), "delete", text(got.Delete))
	}
}

func text(err error) string {
	if err == nil {
		return "granted"
	}
	return err.Error()
}

// Probe is doctor's question: push and pull are needed, without delete snapshots pile up.
func (r *Registry) Probe(ctx context.Context) (string, error) {
	repository := r.own()
	got := r.ask(ctx, repository)
	if repository == "" {
		return "none is configured: no VM of this node can sleep", nil
	}
	if r.Config.Registry.Own {
		repository = Prefix(r.Config) + OwnText
	}
	return repository, errors.Join(got.Push, got.Pull)
}

// ProbeDelete is a check of its own: what lacks it works. It answers what probe, which
// doctor asks first, has just been told.
func (r *Registry) ProbeDelete(context.Context) (string, error) {
	repository := r.own()
	if repository == "" {
		return "no store is configured", nil
	}
	err, _ := r.rights.of(repository).refused()
	return "not refused in " + repository, err
}

// Reaches implements engine.Deleter. A layout may be shared by all nodes, or be each one's own at
// the same path: that nothing is there, or no directory, says something only to who made it.
func (r *Registry) Reaches(ctx context.Context, ref *nodev1.SnapshotRef) (bool, error) {
	if !strings.HasPrefix(ref.GetRepository(), store.LayoutPrefix) || ref.GetNode() == "" ||
		ref.GetNode() == r.Config.Node {
		return true, nil
	}
	there := false
	st, err := r.Open(ctx, ref.GetRepository())
	if err == nil {
		there, err = snapshot.Exists(ctx, st, digest.Digest(ref.GetDigest()))
	}
	if errdefs.IsUnavailable(err) {
		return false, nil
	}
	return there, err
}

// Drop implements engine.Deleter. A store that has refused is not asked each time.
func (r *Registry) Drop(ctx context.Context, repository, dgst, tag, uid string) error {
	if err, ask := r.rights.of(repository).refused(); err != nil {
		if ask {
			err = r.ask(ctx, repository).Delete
		}
		if err != nil {
			return err
		}
	}
	st, err := r.Open(ctx, repository)
	if err != nil {
		return err
	}
	switch err = snapshot.Drop(ctx, st, digest.Digest(dgst), tag, uid); {
	case errors.As(err, new(*snapshot.ForeignError)):
		return fmt.Errorf("%w: %w", engine.ErrForeign, err)
	case err == nil:
		r.forget(repository, dgst)
	case snapshot.Refused(err):
		r.ask(ctx, repository) // for all, or for this one only
	}
	return err
}

// Leftovers implements engine.Deleter.
func (r *Registry) Leftovers(ctx context.Context, repository string) ([]engine.Leftover, error) {
	st, err := r.Open(ctx, repository)
	if err != nil {
		return nil, err
	}
	list, err := snapshot.List(ctx, st)
	if err != nil {
		return nil, err
	}
	var all []engine.Leftover
	for _, l := range list {
		if d, ok := snapshot.SignatureOf(l.Tag); ok {
			// Of a push that died before its manifest: it vouches for nothing.
			if there, err := snapshot.Exists(ctx, st, d); err != nil || there {
				if err != nil {
					return nil, err
				}
				continue
			}
			all = append(all, engine.Leftover{Tag: l.Tag, Digest: d.String(), UID: path.Base(repository),
				Operation: "of a signature"})
			continue
		}
		if l.Err != nil || !l.Ref.Made(l.Tag) {
			continue // somebody else's, or a name that somebody gave it
		}
		all = append(all, engine.Leftover{Tag: l.Tag, Digest: l.Digest.String(), UID: l.Ref.UID, Operation: l.Ref.Operation,
			Generation: l.Ref.Generation, Hold: l.Hold, Bytes: l.Size})
	}
	return all, nil
}

// Collect implements engine.Deleter.
func (r *Registry) Collect(ctx context.Context, repository string, grace time.Duration, dry bool) (int, uint64, error) {
	dir, ok := strings.CutPrefix(repository, store.LayoutPrefix)
	if _, err := os.Stat(dir); !ok || errors.Is(err, os.ErrNotExist) {
		return 0, 0, nil
	}
	l, err := store.NewLayout(dir)
	if err != nil {
		return 0, 0, err
	}
	c, err := l.Collect(ctx, grace, dry)
	if err != nil {
		return 0, 0, fmt.Errorf("collect files of %s: %w", dir, err)
	}
	return c.Files, c.Bytes, nil
}
