// Command godwitd is the daemon of one node: it lists the node's VMs, drives their
// operations and, where the configuration says so, holds the records of the cluster. It
// may be killed and started again at any time; no VM notices.
package main

import (
	"context"
	"errors"
	"flag"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"godwit.dev/godwit/api/config"
	"godwit.dev/godwit/api/version"
	"godwit.dev/godwit/internal/coredump"
	"godwit.dev/godwit/internal/gcpause"
)

func main() {
	path := flag.String("config", "", "configuration (default: GODWIT_CONFIG, else /etc/godwit/config.toml)")
	show := flag.Bool("version", false, "print version, commit and the versions of protocols and formats")
	asJSON := flag.Bool("json", false, "with -version: as JSON")
	node := flag.String("install", "",
		"in a container: put the files of the image into the root file system of the node, mounted here, and end")
	flag.Parse()
	if *node != "" {
		if err := install(os.Stdout, imageTree, *node); err != nil {
			slog.Error("godwitd ends", "error", err)
			os.Exit(1)
		}
		return
	}
	if *show {
		if err := version.Write(os.Stdout, "godwitd", *asJSON); err != nil {
			os.Exit(1)
		}
		return
	}
	if err := coredump.Forbid(); err != nil {
		slog.Error("godwitd ends", "error", err)
		os.Exit(1)
	}
	gcpause.Keep(gcpause.Idle)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *path); err != nil && !errors.Is(err, context.Canceled) {
		slog.ErrorContext(ctx, "godwitd ends", "error", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, path string) error {
	cfg, err := config.Load(path)
	if err != nil {
		return err
	}
	if err := cfg.VMM.CheckUser(); err != nil {
		return err
	}
	level, err := cfg.Log.Slog()
	if err != nil {
		return err
	}
	slog.SetDefault(slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level})).With("node", cfg.Node))
	for _, r := range cfg.Renamed {
		slog.WarnContext(ctx, "a key of the configuration is called otherwise now", "file", r.File, "key", r.Old,
			"new", r.New)
	}
	d, err := newDaemon(ctx, cfg, config.Path(path))
	if err != nil {
		return err
	}
	defer d.close()
	return d.serve(ctx)
}
