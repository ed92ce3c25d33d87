package main

import (
	"context"
	"fmt"

	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/daemon/registry"
	"godwit.dev/godwit/migrate/controller"
	"godwit.dev/godwit/migrate/pki"
	"godwit.dev/godwit/migrate/socket"
	"godwit.dev/godwit/migrate/store"
)

// openRecords takes the records from the controller that the configuration names, or
// holds them here.
func (d *daemon) openRecords(ctx context.Context) error {
	if addresses := d.config.Controller.Addresses(); len(addresses) > 0 {
		identity, err := d.identity()
		if err != nil {
			return fmt.Errorf("certificate of this node (godwit node join makes it): %w", err)
		}
		client := record.Remote(addresses, identity.Client())
		d.remote, d.records, d.whole, d.undo = client, client, record.StoreClient{Client: client},
			append(d.undo, client.Close)
		return nil
	}
	if len(d.config.Controller.Etcd.Endpoints) > 0 {
		return d.openEtcd(ctx)
	}
	st, err := store.Open(d.config.RecordsFile())
	if err != nil {
		return err
	}
	d.store, d.records, d.undo = st, controller.New(st).Under(d.policy()), append(d.undo, st.Close)
	return nil
}

// openEtcd keeps the records where other controllers have them too.
func (d *daemon) openEtcd(ctx context.Context) error {
	cfg, err := store.EtcdOf(d.config.Controller.Etcd)
	if err != nil {
		return err
	}
	st, err := socket.Await(ctx, d.config.DaemonSocket(), func(ctx context.Context) (*store.Etcd, error) {
		return store.OpenEtcd(ctx, cfg)
	})
	if err != nil {
		return err
	}
	d.store, d.records, d.undo = st, controller.New(st).Under(d.policy()), append(d.undo, st.Close)
	return nil
}

// policy is what the configuration lets other nodes do here.
func (d *daemon) policy() controller.Policy {
	return controller.PolicyOf(d.config, registry.Prefix(d.config))
}

// identity is this node's, in the files that the configuration names.
func (d *daemon) identity() (*pki.Identity, error) {
	return pki.LoadOf(d.config.Node, pki.Files{CA: d.config.TLS.CA, Cert: d.config.TLS.Cert, Key: d.config.TLS.Key})
}

// servePeers serves the records to the other nodes, where controller.listen says so.
func (d *daemon) servePeers(ctx context.Context) error {
	address := d.config.Controller.Listen
	if address == "" {
		return nil
	}
	identity, err := d.identity()
	if err != nil {
		return fmt.Errorf("certificate of the controller (godwit node init makes it): %w", err)
	}
	server, err := controller.NewServer(d.traced())
	if err != nil {
		return err
	}
	listener, err := d.listenTCP("controller.listen", address)
	if err != nil {
		return err
	}
	return d.moves.Serve(ctx, server, listener, identity)
}
