package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/migrate/controller"
	"godwit.dev/godwit/migrate/pki"
	"godwit.dev/godwit/migrate/store"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// openRecords takes the records from the controller that the configuration names, or
// holds them here.
func (d *daemon) openRecords(context.Context) error {
	if address := d.config.Controller.Address; address != "" {
		identity, err := pki.Load(d.files())
		if err != nil {
			return fmt.Errorf("certificate of this node (godwit node join makes it): %w", err)
		}
		client := record.Remote(address, identity.Client())
		d.records, d.undo = client, append(d.undo, client.Close)
		return nil
	}
	st, err := store.Open(filepath.Join(d.config.StateDir, "records.db"))
	if err != nil {
		return err
	}
	d.records, d.undo = controller.New(st), append(d.undo, st.Close)
	return nil
}

func (d *daemon) files() pki.Files {
	return pki.Files{CA: d.config.TLS.CA, Cert: d.config.TLS.Cert, Key: d.config.TLS.Key}
}

// servePeers serves the records to the other nodes, where controller.listen says so.
// Nodes may join here as long as the CA's key lies on this node.
func (d *daemon) servePeers(ctx context.Context) error {
	address := d.config.Controller.Listen
	if address == "" {
		return nil
	}
	identity, err := pki.Load(d.files())
	if err != nil {
		return fmt.Errorf("certificate of the controller (godwit node init makes it): %w", err)
	}
	authority, err := pki.OpenAuthority(d.config.PKIDir())
	if errors.Is(err, os.ErrNotExist) {
		authority, err = nil, nil
	}
	if err != nil {
		return err
	}
	server, err := controller.NewServer()
	if err != nil {
		return err
	}
	nodev1.RegisterRecordsService(server, d.records)
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("controller.listen: %w", err)
	}
	return controller.ServeTLS(ctx, server, listener, identity, authority)
}
