package eviction

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	"github.com/open-policy-agent/cert-controller/pkg/rotator"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/webhook"

	"godwit.dev/godwit/internal/retry"
	"godwit.dev/godwit/migrate/kubernetes/operator"
	"godwit.dev/godwit/migrate/kubernetes/schema"
)

// Join has a manager serve the webhook, also while its process does not lead: an order is an object, and the one that
// leads follows it. dir has tls.crt and tls.key, and the token that each caller has to know. Files that are replaced
// there count at once.
func Join(mgr manager.Manager, address, dir string, onStop bool, schemas *schema.Guard) error {
	host, text, err := net.SplitHostPort(address)
	port, perr := strconv.Atoi(text)
	if err != nil || perr != nil || dir == "" {
		return fmt.Errorf("serve the webhook of evictions at %q with certificates of %q: need --webhook HOST:PORT and "+
			"--webhook-certs DIR: %w", address, dir, errdefs.ErrInvalidArgument)
	}
	server := webhook.NewServer(webhook.Options{Host: host, Port: port, CertDir: dir})
	server.Register(Path+"/", guard{tokenFile(dir), Webhook{Client: mgr.GetClient(),
		View: operator.View{Reader: mgr.GetAPIReader(), Engine: true, OnStop: onStop, Schemas: schemas}}})
	waits := &whenThere{Server: server, files: []string{filepath.Join(dir, "tls.crt"), tokenFile(dir)}}
	err = mgr.Add(waits)
	if err == nil {
		err = mgr.AddReadyzCheck("webhook", waits.check)
	}
	if err != nil {
		return fmt.Errorf("serve the webhook of evictions: %w", err)
	}
	return nil
}

// Rotate has a manager make and renew the webhook's certificate, and make its token: in a Secret of that name, whose
// files the kubelet puts where Join looks for them, and in the configuration of the webhook. One process does so, the
// one that leads.
func Rotate(mgr manager.Manager, namespace, secret, dir string) error {
	err := rotator.AddRotator(mgr, &rotator.CertRotator{
		SecretKey: types.NamespacedName{Namespace: namespace, Name: secret}, CertDir: dir,
		CAName: "godwit-webhook-ca", CAOrganization: "godwit", DNSName: ServiceName + "." + namespace + ".svc",
		Webhooks: []rotator.WebhookInfo{{Name: ConfigurationName, Type: rotator.Validating}}, FieldOwner: "godwit-operator",
		IsReady: make(chan struct{}), RequireLeaderElection: true,
	})
	if err != nil {
		return fmt.Errorf("make the certificate of the webhook of evictions: %w", err)
	}
	return joinTokens(mgr, types.NamespacedName{Namespace: namespace, Name: secret})
}

// mountPause is between two looks for a certificate that is not there yet.
const mountPause = time.Second

// whenThere is a server that begins once its files are there.
type whenThere struct {
	webhook.Server
	files []string
	ready atomic.Bool
}

// Start implements manager.Runnable.
func (w *whenThere) Start(ctx context.Context) error {
	for {
		missing := w.missing()
		if missing == nil {
			w.ready.Store(true)
			return w.Server.Start(ctx)
		}
		if !errors.Is(missing, fs.ErrNotExist) {
			return fmt.Errorf("files of the webhook of evictions: %w", missing)
		}
		if retry.Sleep(ctx, mountPause); ctx.Err() != nil {
			return nil
		}
	}
}

func (w *whenThere) missing() error {
	for _, file := range w.files {
		if _, err := os.Stat(file); err != nil {
			return err
		}
	}
	return nil
}

// check says whether the webhook answers.
func (w *whenThere) check(req *http.Request) error {
	if !w.ready.Load() {
		return errors.Join(errors.New("the webhook has no certificate or token yet"), w.missing())
	}
	return w.StartedChecker()(req)
}
