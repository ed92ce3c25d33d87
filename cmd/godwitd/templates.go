package main

import (
	"godwit.dev/godwit/migrate/goldens"
	"godwit.dev/godwit/shim/template/scheduler"
	"godwit.dev/godwit/snapshot/golden"
)

// templates are of two kinds: those of boots, on this node's disk, and golden snapshots, which
// one part makes and the other finds, lists and deletes.
type templates struct {
	boots *scheduler.Scheduler
	*goldens.Maker
	*golden.Shelf
}

// newTemplates needs tasks, machines and records.
func (d *daemon) newTemplates(configPath string) *templates {
	shelf := &golden.Shelf{Config: d.config, Store: d.snapshots.StoreConfig, Worker: d.snapshots.Worker}
	return &templates{
		boots: scheduler.New(d.config, configPath),
		Shelf: shelf,
		Maker: &goldens.Maker{Shelf: shelf, Tasks: d.tasks, Machines: d.machines, Records: d.records,
			Off: d.config.Template.Image.Mode != "on"},
	}
}
