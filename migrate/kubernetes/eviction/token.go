package eviction

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/containerd/errdefs"
	admissionregistration "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// TokenKey is that of the webhook's Secret which has its token. An API server shows no certificate to a webhook unless
// its administrator gives it one. Every API server calls the path of the configuration, which few may read.
const TokenKey = "token"

// guard answers who knows the token, as the last part of the path.
type guard struct {
	file string
	http.Handler
}

// ServeHTTP implements http.Handler. An eviction is rare: the file is read each time, and so one that is replaced
// counts at once.
func (g guard) ServeHTTP(to http.ResponseWriter, req *http.Request) {
	token, err := os.ReadFile(g.file)
	said := strings.TrimPrefix(req.URL.Path, Path+"/")
	if err != nil || len(token) == 0 || subtle.ConstantTimeCompare(token, []byte(said)) != 1 {
		http.Error(to, "the path has not the token of this webhook", http.StatusForbidden)
		return
	}
	g.Handler.ServeHTTP(to, req)
}

// tokens keeps the token in the Secret, and in the path of the configuration.
type tokens struct {
	client.Client
	current client.Reader // reads from the API server
	secret  types.NamespacedName
}

// joinTokens has a manager keep the token, in the process that leads.
func joinTokens(mgr manager.Manager, secret types.NamespacedName) error {
	named := func(name string) builder.Predicates {
		return builder.WithPredicates(predicate.NewPredicateFuncs(func(o client.Object) bool { return o.GetName() == name }))
	}
	same := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request {
		return []reconcile.Request{{NamespacedName: types.NamespacedName{Name: ConfigurationName}}}
	})
	err := ctrl.NewControllerManagedBy(mgr).Named("webhook-token").
		For(&admissionregistration.ValidatingWebhookConfiguration{}, named(ConfigurationName)).
		Watches(&corev1.Secret{}, same, named(secret.Name)).
		Complete(&tokens{Client: mgr.GetClient(), current: mgr.GetAPIReader(), secret: secret})
	if err != nil {
		return fmt.Errorf("keep the token of the webhook of evictions: %w", err)
	}
	return nil
}

// Reconcile implements reconcile.Reconciler.
func (t *tokens) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	err := t.keep(ctx, req.NamespacedName)
	if apierrors.IsConflict(err) { // the certificate is written at the same time
		return ctrl.Result{RequeueAfter: mountPause}, nil
	}
	return ctrl.Result{}, client.IgnoreNotFound(err)
}

func (t *tokens) keep(ctx context.Context, configuration types.NamespacedName) error {
	token, err := t.token(ctx)
	if err != nil {
		return err
	}
	o := &admissionregistration.ValidatingWebhookConfiguration{}
	if err := t.current.Get(ctx, configuration, o); err != nil {
		return err
	}
	path, changed := Path+"/"+token, false
	for i := range o.Webhooks {
		at := o.Webhooks[i].ClientConfig.Service
		if at == nil {
			return fmt.Errorf("ValidatingWebhookConfiguration %s: webhooks[%d].clientConfig.service is missing: apply "+
				"packaging/kubernetes again: %w", o.Name, i, errdefs.ErrFailedPrecondition)
		}
		changed = changed || at.Path == nil || *at.Path != path
		at.Path = &path
	}
	if !changed {
		return nil
	}
	return t.Update(ctx, o)
}

// segment is what a configuration may have in its path.
var segment = regexp.MustCompile(`^[a-z0-9]{16,128}$`)

// token is that of the Secret, which gets one.
func (t *tokens) token(ctx context.Context) (string, error) {
	o := &corev1.Secret{}
	if err := t.current.Get(ctx, t.secret, o); err != nil {
		return "", err
	}
	if token := string(o.Data[TokenKey]); segment.MatchString(token) {
		return token, nil
	}
	token := strings.ToLower(rand.Text())
	if o.Data == nil {
		o.Data = map[string][]byte{}
	}
	o.Data[TokenKey] = []byte(token)
	return token, t.Update(ctx, o)
}

// tokenFile is where the kubelet puts it.
func tokenFile(dir string) string { return filepath.Join(dir, TokenKey) }
