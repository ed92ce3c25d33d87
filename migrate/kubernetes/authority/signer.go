package authority

import (
	"context"
	"fmt"
	"time"

	certificates "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"godwit.dev/godwit/migrate/kubernetes/store"
	"godwit.dev/godwit/migrate/pki"
	recordstore "godwit.dev/godwit/migrate/store"
)

// Valid is how long the certificate of a node is. Its agent asks for the next one after two thirds of that.
const Valid = 90 * 24 * time.Hour

// again is when a lost race is looked at again.
const again = 2 * time.Second

// machines are what the records mean by the names of nodes, and which VMs they have there.
type machines interface {
	Machine(ctx context.Context, node string) (store.Machine, error)
	SetMachine(ctx context.Context, node string, m store.Machine) error
	Find(ctx context.Context, which recordstore.Which) (recordstore.Found, error)
}

// signer approves and signs the requests of nodes, and denies all others that name its signer.
type signer struct {
	cached    client.Reader
	current   client.Reader // reads from the API server
	requests  *kubernetes.Clientset
	authority *pki.Authority
	namespace string
	self      string // the controller's name
	records   machines
	events    events.EventRecorder
}

// Join has a manager sign, and keep the CA, in the process that leads.
func Join(mgr manager.Manager, authority *pki.Authority, namespace, self string) error {
	if err := checkNamespace(namespace); err != nil {
		return err
	}
	requests, err := kubernetes.NewForConfig(mgr.GetConfig())
	if err != nil {
		return fmt.Errorf("sign certificates of nodes: %w", err)
	}
	ofNodes := *authority
	ofNodes.Valid = Valid
	records, err := store.Open(mgr.GetConfig(), namespace)
	if err != nil {
		return err
	}
	s := &signer{cached: mgr.GetClient(), current: mgr.GetAPIReader(), requests: requests, authority: &ofNodes,
		namespace: namespace, self: self, records: records, events: mgr.GetEventRecorder("godwit-operator")}
	if err := ctrl.NewControllerManagedBy(mgr).Named("node-certificates").
		For(&certificates.CertificateSigningRequest{}).Complete(s); err != nil {
		return fmt.Errorf("sign certificates of nodes: %w", err)
	}
	return keep(mgr, requests, authority, namespace)
}

// Reconcile implements reconcile.Reconciler.
func (s *signer) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	csr := &certificates.CertificateSigningRequest{}
	if err := s.cached.Get(ctx, req.NamespacedName, csr); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	err := s.answer(ctx, csr)
	if apierrors.IsConflict(err) {
		return ctrl.Result{RequeueAfter: again}, nil
	}
	return ctrl.Result{}, client.IgnoreNotFound(err)
}

func (s *signer) answer(ctx context.Context, csr *certificates.CertificateSigningRequest) error {
	v := judge(csr, s.namespace, s.self)
	reason := notThisNode
	if v.machine != "" {
		var err error
		if v.denied, reason, err = s.replaced(ctx, v); err != nil {
			return err
		}
	}
	api := s.requests.CertificatesV1().CertificateSigningRequests()
	switch {
	case v.denied != "" && approved(csr): // a person has approved it, and may sign it
		return nil
	case v.denied != "":
		s.condition(csr, certificates.CertificateDenied, reason, v.denied)
		_, err := api.UpdateApproval(ctx, csr.Name, csr, metav1.UpdateOptions{})
		if err == nil && reason == madeAgain {
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: v.node, UID: types.UID(v.machine)}}
			s.events.Eventf(node, nil, corev1.EventTypeWarning, reason, "Certificate", "%.1000s", v.denied)
		}
		return err
	case v.node == "":
		return nil
	}
	if !approved(csr) {
		s.condition(csr, certificates.CertificateApproved, "TokenOfNode", "the token that asks is of node "+v.node)
		var err error
		if csr, err = api.UpdateApproval(ctx, csr.Name, csr, metav1.UpdateOptions{}); err != nil {
			return err
		}
	}
	chain, err := s.authority.Sign(csr.Spec.Request, v.node)
	if err != nil {
		return err
	}
	csr.Status.Certificate = chain
	_, err = api.UpdateStatus(ctx, csr, metav1.UpdateOptions{})
	return err
}

func (*signer) condition(csr *certificates.CertificateSigningRequest, kind certificates.RequestConditionType, reason,
	message string) {
	csr.Status.Conditions = append(csr.Status.Conditions, certificates.CertificateSigningRequestCondition{Type: kind,
		Status: corev1.ConditionTrue, Reason: reason, Message: message, LastUpdateTime: metav1.Now()})
}
