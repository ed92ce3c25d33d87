// Package control runs the controller of a cluster whose records are objects in the API server. It serves the nodes as
// a godwitd with controller.listen does.
package control

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"os"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/rest"

	"godwit.dev/godwit/api/config"
	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/migrate/control"
	"godwit.dev/godwit/migrate/controller"
	"godwit.dev/godwit/migrate/engine"
	"godwit.dev/godwit/migrate/kubernetes/pods"
	"godwit.dev/godwit/migrate/kubernetes/store"
	"godwit.dev/godwit/migrate/pki"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Controller of a cluster.
type Controller struct {
	*control.Alone
	identity *pki.Identity
	store    *store.Store
}

// PodsOfNodes answers the nodes about pods, and says which node may boot a VM.
type PodsOfNodes interface {
	nodev1.PodsService
	Boots(ctx context.Context, rec *nodev1.Record, node string) error
	Places(ctx context.Context, rec *nodev1.Record, op *nodev1.Operation, node string) error
	OwnLogin(ctx context.Context, repository string) (*nodev1.LoginResponse, error)
}

// Open opens the records in an API server. The notes of nodes are in a namespace. cfg is the configuration of a node:
// its node is the controller's name, and registry.repository is where cold moves put snapshots. Its certificate is a
// controller's. pods answers the nodes about pods. figures has the metrics; nil: there are none.
func Open(ctx context.Context, cfg *config.Config, api *rest.Config, namespace string, places engine.Places,
	pods PodsOfNodes, figures prometheus.Registerer) (*Controller, error) {
	identity, err := identityOf(cfg)
	if err != nil {
		return nil, err
	}
	st, err := store.Open(api, namespace)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(cfg.StateDir, 0o711); err != nil {
		return nil, fmt.Errorf("state_dir: %w", err)
	}
	policy := controller.PolicyOf(cfg, cfg.Registry.Repository)
	policy.OwnWakes, policy.Reserved = true, reserved
	if pods != nil {
		policy.Boots, policy.Places = pods.Boots, pods.Places
	}
	alone, err := control.OpenAlone(ctx, control.Options{
		Config: cfg, Store: st, Name: "kubernetes " + namespace, Records: controller.New(st).Under(policy), Policy: policy,
		Places: places, Pods: pods, Metrics: figures,
		TLS: func(node string) (*tls.Config, error) { return identity.ClientOf(node), nil },
	}, snapshots{cfg, pods}, control.EngineOptions(cfg, func(rec *nodev1.Record) string {
		return record.Repository(rec, cfg.Registry.Repository)
	}))
	if err != nil {
		return nil, err
	}
	return &Controller{Alone: alone, identity: identity, store: st}, nil
}

// reserved are the names of the VMs of Sandboxes. A node sees the uid of a Sandbox before its pod asks for the VM.
func reserved(vm *nodev1.VM) bool {
	return vm.GetNamespace() == store.Kubernetes && pods.IsSandboxRecord(vm.GetId())
}

// identityOf checks what a controller needs of its configuration, without which it would never lead.
func identityOf(cfg *config.Config) (*pki.Identity, error) {
	if cfg.Controller.Listen == "" {
		return nil, missing("controller.listen", "the address where nodes reach this controller")
	}
	identity, err := pki.LoadOf(cfg.Node, pki.Files{CA: cfg.TLS.CA, Cert: cfg.TLS.Cert, Key: cfg.TLS.Key})
	if err != nil {
		return nil, fmt.Errorf("certificate of the controller: %w", err)
	}
	return identity, nil
}

// Run serves the nodes until ctx ends, and closes the controller.
func (c *Controller) Run(ctx context.Context) error {
	l, err := net.Listen("tcp", c.Config.Controller.Listen)
	if err != nil {
		return fmt.Errorf("controller.listen: %w", err)
	}
	followed := make(chan struct{})
	ctx, stop := context.WithCancel(ctx)
	go func() {
		defer close(followed)
		c.store.Follow(ctx)
	}()
	defer func() { stop(); <-followed }()
	return c.Alone.Run(ctx, l, c.identity)
}
