package control

import (
	"context"
	"fmt"
	"path"
	"strings"

	"github.com/containerd/errdefs"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"godwit.dev/godwit/migrate/controller"
	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/decide"
	"godwit.dev/godwit/migrate/kubernetes/store"
	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// indexUID finds the records in the cache by the uids of their VMs.
const indexUID = "godwit.dev/uid"

func uidsOf(o client.Object) []string {
	rec, ok := o.(*v1alpha1.VMRecord)
	if !ok {
		return nil
	}
	return store.UIDs(rec)
}

// joinLogins lets the pods find records by uid, and read Secrets.
func (p *Pods) joinLogins(mgr manager.Manager) error {
	err := mgr.GetFieldIndexer().IndexField(context.Background(), &v1alpha1.VMRecord{}, indexUID, uidsOf)
	if err != nil {
		return fmt.Errorf("index the records: %w", err)
	}
	p.Cached, p.View.Secrets = mgr.GetClient(), mgr.GetAPIReader()
	return nil
}

// loginAsk is a question for a login.
type loginAsk struct {
	repository, prefix, uid string
	use                     nodev1.Use
	may                     func(*nodev1.Record, []*nodev1.Owed) bool // what is asked for
}

func ask(req *nodev1.LoginRequest, may func(*nodev1.Record, []*nodev1.Owed) bool) loginAsk {
	at := req.GetRepository()
	return loginAsk{at, path.Dir(at), path.Base(at), req.GetUse(), may}
}

// Login implements nodev1.PodsService. A node gets the login for a place of a VM that the records bind to it. Where it
// makes or reads snapshots it gets the keys. For a place that was not given the answer is empty: the node's own count.
// What may be mended is Unavailable. Everything that decides is read from the API server itself; nothing that the node
// says does.
func (p *Pods) Login(ctx context.Context, req *nodev1.LoginRequest) (*nodev1.LoginResponse, error) {
	node, remote := controller.Peer(ctx)
	if !remote || node == "" {
		return nil, fmt.Errorf("a node asks for a login by its certificate: %w", errdefs.ErrPermissionDenied)
	}
	return p.login(ctx, ask(req, func(rec *nodev1.Record, owed []*nodev1.Owed) bool {
		if req.GetUse() == nodev1.Use_USE_CONTENT {
			return decide.MayHaveKeys(node, req.GetRepository(), rec)
		}
		return decide.MayLogIn(node, req.GetRepository(), rec, owed)
	}))
}

// OwnLogin is that of the controller itself. It gets no keys.
func (p *Pods) OwnLogin(ctx context.Context, repository string) (*nodev1.LoginResponse, error) {
	return p.login(ctx, ask(&nodev1.LoginRequest{Repository: repository, Use: nodev1.Use_USE_STORE},
		func(*nodev1.Record, []*nodev1.Owed) bool { return true }))
}

// ownLogins asks for the controller itself.
type ownLogins struct{ PodsOfNodes }

func (o ownLogins) Login(ctx context.Context, req *nodev1.LoginRequest) (*nodev1.LoginResponse, error) {
	return o.OwnLogin(ctx, req.GetRepository())
}

func (p *Pods) login(ctx context.Context, q loginAsk) (*nodev1.LoginResponse, error) {
	classes, err := p.View.Classes(ctx)
	if err != nil {
		return nil, unread(err)
	}
	some := decide.Keys{} // that may be handed out
	if q.use != nodev1.Use_USE_STORE {
		some = decide.AllKeys
	}
	if len(decide.Secrets(classes, q.prefix, nil, some)) == 0 { // no class has one: the node's own counts
		if err := p.needsNone(ctx, q); err != nil {
			return nil, err
		}
		return &nodev1.LoginResponse{}, nil
	}
	of, err := p.bound(ctx, q)
	if err != nil {
		return nil, fmt.Errorf("login for %s: %w", q.repository, err)
	}
	if of == nil { // as where nodes of before classes store: no class counts there
		return &nodev1.LoginResponse{}, nil
	}
	wants, made, err := p.keysOf(ctx, of, q)
	if err != nil {
		return nil, err
	}
	if made { // with the keys that are wanted, and no others
		some = wants
	}
	class, err := p.classOf(ctx, classes, q.prefix, of.vm, some)
	if err != nil {
		return nil, err
	}
	if why := decide.NoKeys(wants, q.prefix, class); why != "" {
		return nil, p.noKeys(ctx, of.vm, q, why)
	}
	if class == nil {
		return &nodev1.LoginResponse{}, nil
	}
	if q.use == nodev1.Use_USE_UNSPECIFIED &&
		len(decide.SecretsOf(class, some)) > len(decide.SecretsOf(class, decide.Keys{})) {
		return nil, fmt.Errorf("login for %s: VMSnapshotClass %s has keys, and what asks is of a release that knows none: "+
			"upgrade the node, and boot, wake or move the VM: %w", q.repository, class.Name, errdefs.ErrFailedPrecondition)
	}
	login, why, err := p.View.Login(ctx, class, q.repository, some)
	if err != nil {
		return nil, unread(err)
	}
	if why != "" {
		p.tellNoSecret(ctx, of.vm, why)
		return nil, fmt.Errorf("login for %s: %s: %w", q.repository, why, errdefs.ErrUnavailable) // until it is mended
	}
	return login, nil
}

// known is what the records have of a uid.
type known struct {
	vm   types.NamespacedName
	rec  *nodev1.Record // nil: it is of another uid
	owed []*nodev1.Owed
}

// known reads what the records have of a uid. The cache says where to look, and no more.
func (p *Pods) known(ctx context.Context, uid string) (found []known, err error) {
	all := &v1alpha1.VMRecordList{}
	if err := p.Cached.List(ctx, all, client.MatchingFields{indexUID: uid}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, unread(fmt.Errorf("find the record: %w", err))
	}
	for i := range all.Items {
		o := &v1alpha1.VMRecord{}
		there, err := p.View.Get(ctx, types.NamespacedName{Name: all.Items[i].Name}, o)
		if err != nil {
			return nil, unread(err)
		}
		if !there {
			continue
		}
		rec, owed, err := store.RecordAndOwed(o)
		if err != nil {
			return nil, err
		}
		if rec.GetUid() != uid {
			rec = nil
		}
		vm, _ := store.NameOf(&nodev1.VM{Namespace: o.Spec.VM.Namespace, Id: o.Spec.VM.ID})
		found = append(found, known{vm, rec, owed})
	}
	return found, nil
}

// bound answers the VM to which a repository was given; nil: it was given to none. Its record or its pending
// deletions have to say that the caller may have what it asks for.
func (p *Pods) bound(ctx context.Context, q loginAsk) (*known, error) {
	all, err := p.known(ctx, q.uid)
	if err != nil {
		return nil, err
	}
	given := false
	for _, k := range all {
		if !decide.GivenPlace(q.repository, k.rec, k.owed) {
			continue
		}
		ok, err := p.mayOf(ctx, k.rec, k.owed, q.repository, q.may)
		if err != nil {
			return nil, err
		}
		if given = true; ok {
			return &k, nil
		}
	}
	switch {
	case len(all) == 0:
		return nil, fmt.Errorf("no record of VM %q is known here yet: %w", q.uid, errdefs.ErrUnavailable)
	case given:
		return nil, errNotBound
	}
	return nil, nil
}

// mayOf asks may of a record and of deletions, and of the VMs that have begun from what is held in a repository.
func (p *Pods) mayOf(ctx context.Context, rec *nodev1.Record, owed []*nodev1.Owed, repository string,
	may func(*nodev1.Record, []*nodev1.Owed) bool) (bool, error) {
	if may(rec, owed) {
		return true, nil
	}
	for _, o := range owed {
		by := o.GetHold()
		if by.GetVm() == nil || o.GetSnapshot().GetRepository() != repository {
			continue
		}
		taker := &v1alpha1.VMRecord{}
		there, err := p.View.Get(ctx, types.NamespacedName{Name: by.GetVm().GetId()}, taker)
		if err != nil {
			return false, unread(err)
		}
		if !there {
			continue
		}
		rec, _, err := store.Record(taker)
		if err != nil {
			return false, err
		}
		if transition.Marked(o, rec) && may(rec, nil) {
			return true, nil
		}
	}
	return false, nil
}

// classOf is the class whose Secret counts; nil: none does.
func (p *Pods) classOf(ctx context.Context, all []v1alpha1.VMSnapshotClass, prefix string,
	vm types.NamespacedName, keys decide.Keys) (*v1alpha1.VMSnapshotClass, error) {
	ns, err := p.View.Namespace(ctx, vm.Namespace)
	if err != nil {
		return nil, unread(err)
	}
	found := decide.Secrets(all, prefix, ns, keys)
	switch len(found) {
	case 0:
		return nil, nil
	case 1:
		return found[0], nil
	}
	var names []string
	for _, c := range found {
		names = append(names, c.Name)
	}
	return nil, fmt.Errorf("VMSnapshotClasses %s have one spec.repository and different Secrets. An "+
		"administrator names the same in all of them: %w", strings.Join(names, ", "), errdefs.ErrUnavailable)
}

// tellNoSecret tells the VirtualMachine of a VM that its class gives no login, or no keys. The operation that fails
// says it too.
func (p *Pods) tellNoSecret(ctx context.Context, key types.NamespacedName, why string) {
	vm := &v1alpha1.VirtualMachine{}
	if there, err := p.View.Get(ctx, key, vm); err == nil && there {
		p.Events.Eventf(vm, nil, corev1.EventTypeWarning, string(decide.ReasonClassSecret), "Login", "%s", why)
	}
}
