package eviction

import (
	"fmt"
	"net"
	"strconv"

	"github.com/containerd/errdefs"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/webhook"

	"godwit.dev/godwit/migrate/kubernetes/operator"
)

// Join has a manager serve the webhook, also while its process does not lead: an order is an object, and the one that
// leads follows it. dir has tls.crt and tls.key. Files that are replaced there count at once.
func Join(mgr manager.Manager, address, dir string, onStop bool) error {
	host, text, err := net.SplitHostPort(address)
	port, perr := strconv.Atoi(text)
	if err != nil || perr != nil || dir == "" {
		return fmt.Errorf("serve the webhook of evictions at %q with certificates of %q: need --webhook HOST:PORT and "+
			"--webhook-certs DIR: %w", address, dir, errdefs.ErrInvalidArgument)
	}
	server := webhook.NewServer(webhook.Options{Host: host, Port: port, CertDir: dir})
	server.Register(Path, Webhook{Client: mgr.GetClient(),
		View: operator.View{Reader: mgr.GetAPIReader(), Engine: true, OnStop: onStop}})
	if err := mgr.Add(server); err != nil {
		return fmt.Errorf("serve the webhook of evictions: %w", err)
	}
	return nil
}
