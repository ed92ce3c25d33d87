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

// Login implements nodev1.PodsService. A node gets the login for a place of a VM that the records bind to it. For a
// place that was not given the answer is empty: the node's own login counts. What may be mended is Unavailable.
// Everything that decides is read from the API server itself; nothing that the node says does.
func (p *Pods) Login(ctx context.Context, req *nodev1.LoginRequest) (*nodev1.LoginResponse, error) {
	node, remote := controller.Peer(ctx)
	if !remote || node == "" {
		return nil, fmt.Errorf("a node asks for a login by its certificate: %w", errdefs.ErrPermissionDenied)
	}
	return p.login(ctx, req.GetRepository(), func(rec *nodev1.Record, owed []*nodev1.Owed) bool {
		return decide.MayLogIn(node, req.GetRepository(), rec, owed)
	})
}

// OwnLogin is that of the controller itself.
func (p *Pods) OwnLogin(ctx context.Context, repository string) (*nodev1.LoginResponse, error) {
	return p.login(ctx, repository, func(*nodev1.Record, []*nodev1.Owed) bool { return true })
}

// ownLogins asks for the controller itself.
type ownLogins struct{ PodsOfNodes }

func (o ownLogins) Login(ctx context.Context, req *nodev1.LoginRequest) (*nodev1.LoginResponse, error) {
	return o.OwnLogin(ctx, req.GetRepository())
}

func (p *Pods) login(ctx context.Context, repository string,
	may func(*nodev1.Record, []*nodev1.Owed) bool) (*nodev1.LoginResponse, error) {
	prefix, uid := path.Dir(repository), path.Base(repository)
	classes := &v1alpha1.VMSnapshotClassList{}
	if err := p.View.List(ctx, classes); err != nil {
		return nil, unread(fmt.Errorf("list classes of snapshots: %w", err))
	}
	if len(decide.Secrets(classes.Items, prefix, nil)) == 0 {
		return &nodev1.LoginResponse{}, nil // no class has one: the node's own counts
	}
	vm, given, err := p.bound(ctx, uid, repository, may)
	if err != nil {
		return nil, fmt.Errorf("login for %s: %w", repository, err)
	}
	if !given { // as where nodes of before classes store: no class counts there
		return &nodev1.LoginResponse{}, nil
	}
	class, err := p.classOf(ctx, classes.Items, prefix, vm)
	if err != nil {
		return nil, err
	}
	if class == nil {
		return &nodev1.LoginResponse{}, nil
	}
	login, why, err := p.View.Login(ctx, class, repository)
	if err != nil {
		return nil, unread(err)
	}
	if why != "" {
		p.tellNoSecret(ctx, vm, why)
		return nil, fmt.Errorf("login for %s: %s: %w", repository, why, errdefs.ErrUnavailable) // until it is mended
	}
	return login, nil
}

// bound answers the VM of a uid to which a repository was given. Its record or its pending deletions have to say that
// the caller may log in. The cache says where to look, and no more.
func (p *Pods) bound(ctx context.Context, uid, repository string,
	may func(*nodev1.Record, []*nodev1.Owed) bool) (vm types.NamespacedName, given bool, err error) {
	all, known := &v1alpha1.VMRecordList{}, false
	if err := p.Cached.List(ctx, all, client.MatchingFields{indexUID: uid}, client.UnsafeDisableDeepCopy); err != nil {
		return vm, false, unread(fmt.Errorf("find the record: %w", err))
	}
	for i := range all.Items {
		o := &v1alpha1.VMRecord{}
		there, err := p.View.Get(ctx, types.NamespacedName{Name: all.Items[i].Name}, o)
		if err != nil {
			return vm, false, unread(err)
		}
		if !there {
			continue
		}
		rec, owed, err := store.RecordAndOwed(o)
		if err != nil {
			return vm, false, err
		}
		if rec.GetUid() != uid {
			rec = nil
		}
		known = true
		if !decide.GivenPlace(repository, rec, owed) {
			continue
		}
		ok, err := p.mayOf(ctx, rec, owed, repository, may)
		if err != nil {
			return vm, false, err
		}
		if given = true; ok {
			vm, _ = store.NameOf(&nodev1.VM{Namespace: o.Spec.VM.Namespace, Id: o.Spec.VM.ID})
			return vm, true, nil
		}
	}
	switch {
	case !known:
		return vm, false, fmt.Errorf("no record of VM %q is known here yet: %w", uid, errdefs.ErrUnavailable)
	case given:
		return vm, true, fmt.Errorf("the node has neither that VM, nor an operation or a deletion there: %w",
			errdefs.ErrPermissionDenied)
	}
	return vm, false, nil
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
	vm types.NamespacedName) (*v1alpha1.VMSnapshotClass, error) {
	ns := &corev1.Namespace{}
	if there, err := p.View.Get(ctx, types.NamespacedName{Name: vm.Namespace}, ns); err != nil {
		return nil, unread(err)
	} else if !there {
		ns = nil
	}
	found := decide.Secrets(all, prefix, ns)
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
	return nil, fmt.Errorf("VMSnapshotClasses %s have one spec.repository and different Secrets in spec.pullSecretRef. "+
		"An administrator names one Secret in all of them: %w", strings.Join(names, ", "), errdefs.ErrUnavailable)
}

// tellNoSecret tells the VirtualMachine of a VM that its class gives no login. The operation that fails says it too.
func (p *Pods) tellNoSecret(ctx context.Context, key types.NamespacedName, why string) {
	vm := &v1alpha1.VirtualMachine{}
	if there, err := p.View.Get(ctx, key, vm); err == nil && there {
		p.Events.Eventf(vm, nil, corev1.EventTypeWarning, string(decide.ReasonClassSecret), "Login", "%s", why)
	}
}
