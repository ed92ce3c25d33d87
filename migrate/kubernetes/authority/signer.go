package authority

import (
	"context"
	"fmt"
	"time"

	certificates "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
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

// signer approves and signs the requests of nodes, and denies all others that name its signer.
type signer struct {
	cached    client.Reader
	requests  *kubernetes.Clientset
	authority *pki.Authority
	namespace string
	self      string // the controller's name
	records   *store.Store
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
	s := &signer{cached: mgr.GetClient(), requests: requests, authority: &ofNodes, namespace: namespace, self: self,
		records: records}
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
	reason := "NotThisNode"
	if v.machine != "" {
		denied, err := s.replaced(ctx, v)
		if err != nil {
			return err
		}
		if denied != "" {
			v.denied, reason = denied, "NodeMadeAgain"
		}
	}
	api := s.requests.CertificatesV1().CertificateSigningRequests()
	switch {
	case v.denied != "" && approved(csr): // a person has approved it, and may sign it
		return nil
	case v.denied != "":
		s.condition(csr, certificates.CertificateDenied, reason, v.denied)
		_, err := api.UpdateApproval(ctx, csr.Name, csr, metav1.UpdateOptions{})
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

// replaced says why another machine does not get the name of a node yet; empty: it has the name from now on. With the
// name it would say of each VM of the first machine that there is none, and the VM would run a second time.
func (s *signer) replaced(ctx context.Context, v verdict) (string, error) {
	before, err := s.records.Machine(ctx, v.node)
	if err != nil || before == v.machine {
		return "", err
	}
	if before != "" {
		held, err := s.records.Find(ctx, recordstore.Which{Node: v.node})
		if err != nil {
			return "", err
		}
		if n := len(held.Records); n > 0 {
			return fmt.Sprintf("Node %s was made again, and the one before (uid %s) has VMs, by the records: %d. If that "+
				"machine runs nothing any more: kubectl label node %s %s=%s, and delete its VMs, or have them restored "+
				"elsewhere (onNodeLoss)", v.node, before, n, v.node, LabelReplaces, before), nil
		}
	}
	return "", s.records.SetMachine(ctx, v.node, v.machine)
}

func (*signer) condition(csr *certificates.CertificateSigningRequest, kind certificates.RequestConditionType, reason,
	message string) {
	csr.Status.Conditions = append(csr.Status.Conditions, certificates.CertificateSigningRequestCondition{Type: kind,
		Status: corev1.ConditionTrue, Reason: reason, Message: message, LastUpdateTime: metav1.Now()})
}
