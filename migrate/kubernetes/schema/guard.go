package schema

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"godwit.dev/godwit/internal/turn"
	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
)

const (
	// Settle is how long after a change of a schema nothing is done: an API server may serve the one before for a
	// moment, and of several each learns of the change by itself.
	Settle = 10 * time.Second
	// Again is how long after what could not be done under another schema it is tried again.
	Again = 5 * time.Second
	// checkBound of one question.
	checkBound = 5 * time.Second
	// mostNamed of the fields that are missing.
	mostNamed = 8
	// table asks for the version of an object alone: a schema has 100 KB.
	table = "application/json;as=Table;v=v1;g=meta.k8s.io"
)

// ErrOutdated is of a schema that lacks what this build needs, or that has just changed.
var ErrOutdated = fmt.Errorf("the API server serves another schema: %w", errdefs.ErrUnavailable)

// Guard knows whether the API server serves all that this build writes and reads.
type Guard struct {
	client rest.Interface
	own    map[string]*apiextensionsv1.JSONSchemaProps // by the name of the object

	turns map[string]turn.Turn // by name: who looks at it

	mu    sync.Mutex
	seen  map[string]seen
	looks map[string]*look // by name: that has not begun
	last  map[string]error // by name: of the latest look
	tell  func(name string, err error)
}

// look at a schema is one for all who want it before it begins.
type look struct {
	over bool // by then it is set; guarded by the turn
	err  error
}

// seen is a schema as it was read last.
type seen struct {
	uid, version string // of the object
	generation   int64  // of what it says
	err          error  // what it lacks
	began        time.Time
	settles      bool // it was another one before, or has just changed
}

// New returns a guard of an API server: of the schemas of some resources, or of all.
func New(config *rest.Config, resources ...string) (*Guard, error) {
	all, err := own()
	if err != nil {
		return nil, err
	}
	if len(resources) > 0 {
		maps.DeleteFunc(all, func(name string, _ *apiextensionsv1.JSONSchemaProps) bool {
			return !slices.Contains(resources, resourceOf(name))
		})
	}
	c := rest.CopyConfig(config)
	gv := apiextensionsv1.SchemeGroupVersion
	c.GroupVersion, c.APIPath, c.NegotiatedSerializer = &gv, "/apis", scheme.Codecs.WithoutConversion()
	client, err := rest.RESTClientFor(c)
	if err != nil {
		return nil, fmt.Errorf("compare schemas with those of %s: %w: %w", config.Host, errdefs.ErrInvalidArgument, err)
	}
	g := &Guard{client: client, own: all, seen: map[string]seen{}, looks: map[string]*look{},
		last: map[string]error{}, turns: map[string]turn.Turn{}}
	for name := range all {
		g.turns[name] = turn.New()
	}
	return g, nil
}

// Tell has tell hear of each schema that lacks something, and, with nil, that it does no more: each word once.
func (g *Guard) Tell(tell func(name string, err error)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.tell = tell
}

// Check answers ErrOutdated unless all that was read of some resources before the call was read by schemas that have
// all fields of this build. Without resources it looks at all. A schema of any other one that was seen to lack
// something is looked at too. A nil guard refuses nothing.
func (g *Guard) Check(ctx context.Context, resources ...string) error {
	if g == nil {
		return nil
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(g.own)) {
		if len(resources) == 0 || slices.Contains(resources, resourceOf(name)) || g.lacking(name) {
			errs = append(errs, g.shared(ctx, name))
		}
	}
	return errors.Join(errs...)
}

func resourceOf(name string) string {
	resource, _, _ := strings.Cut(name, ".")
	return resource
}

// lacking reports whether a schema lacked something when it was read last.
func (g *Guard) lacking(name string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.seen[name].err != nil
}

// shared has one look answer all that came before it began.
func (g *Guard) shared(ctx context.Context, name string) error {
	g.mu.Lock()
	l := g.looks[name]
	if l == nil {
		l = &look{}
		g.looks[name] = l
	}
	g.mu.Unlock()
	at := g.turns[name]
	if err := at.Take(ctx); err != nil {
		return fmt.Errorf("wait for schema %s: %w: %w", name, ErrOutdated, err)
	}
	defer at.Give()
	if !l.over {
		g.mu.Lock()
		delete(g.looks, name)
		g.mu.Unlock()
		l.err, l.over = g.check(context.WithoutCancel(ctx), name), true
		g.mu.Lock()
		g.last[name] = l.err
		g.mu.Unlock()
	}
	return l.err
}

func (g *Guard) check(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, checkBound)
	defer cancel()
	short, err := g.read(ctx, name, table)
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	g.mu.Lock()
	known, there := g.seen[name]
	g.mu.Unlock()
	if !there || short.ResourceVersion == "" || known.version != short.ResourceVersion {
		if known, err = g.learn(ctx, name); err != nil {
			return err
		}
	}
	switch {
	case known.err != nil:
		return known.err
	case known.settles && time.Since(known.began) < Settle:
		return fmt.Errorf("schema %s has changed a moment ago: %w", name, ErrOutdated)
	}
	return nil
}

// learn reads a schema, and compares it.
func (g *Guard) learn(ctx context.Context, name string) (seen, error) {
	o, err := g.read(ctx, name, "application/json")
	if apierrors.IsNotFound(err) {
		return g.note(name, seen{err: err, began: time.Now()}), nil
	}
	if err != nil {
		return seen{}, err
	}
	now := seen{uid: string(o.UID), version: o.ResourceVersion, generation: o.Generation, began: time.Now()}
	now.settles = now.began.Sub(changed(o)) < Settle
	if served := of(o); served == nil {
		now.err = fmt.Errorf("schema %s: it serves no %s: apply the schemas of this build: %w", name,
			v1alpha1.GroupVersion.Version, ErrOutdated)
	} else if all := missing("", g.own[name], served); len(all) > 0 {
		now.err = fmt.Errorf("schema %s lacks %s: apply the schemas of this build, and write none of its objects before: "+
			"%w", name, named(all), ErrOutdated)
	}
	return g.note(name, now), nil
}

// changed is when a schema was made, written or served last, by the clock of the API server.
func changed(o *apiextensionsv1.CustomResourceDefinition) time.Time {
	at := o.CreationTimestamp.Time
	for _, f := range o.ManagedFields {
		if f.Time != nil && f.Time.After(at) {
			at = f.Time.Time
		}
	}
	for _, c := range o.Status.Conditions {
		if c.LastTransitionTime.After(at) {
			at = c.LastTransitionTime.Time
		}
	}
	return at
}

func (g *Guard) note(name string, now seen) seen {
	g.mu.Lock()
	before, there := g.seen[name]
	switch same := before.uid == now.uid && before.generation == now.generation; {
	case there && same: // its status has changed
		now.began, now.settles = before.began, before.settles
	case there:
		now.settles = true
	}
	g.seen[name] = now
	tell := g.tell
	g.mu.Unlock()
	if tell != nil && text(before.err) != text(now.err) {
		tell(name, now.err)
	}
	return now
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func named(all []string) string {
	if more := len(all) - mostNamed; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(all[:mostNamed], ", "), more)
	}
	return strings.Join(all, ", ")
}

// read asks for an object, which is never nil. What cannot be read proves nothing, and so nothing is done.
func (g *Guard) read(ctx context.Context, name, accept string) (*apiextensionsv1.CustomResourceDefinition, error) {
	req := g.client.Get().Resource("customresourcedefinitions").Name(name).SetHeader("Accept", accept)
	if accept == table {
		req = req.Param("includeObject", string(metav1.IncludeNone))
	}
	data, err := req.Do(ctx).Raw()
	o := &apiextensionsv1.CustomResourceDefinition{}
	if err == nil {
		err = json.Unmarshal(data, o)
	}
	if err != nil {
		err = fmt.Errorf("read schema %s: %w: %w", name, ErrOutdated, err)
	}
	return o, err
}
