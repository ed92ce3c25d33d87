package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"godwit.dev/godwit/api/config"
	"godwit.dev/godwit/packaging"
)

const tunDevice = "/dev/net/tun"

// dirMode is that of state_dir and run_dir: VMMs, which are users of their own, pass through.
const dirMode = 0o711

// dropInFile names the runtime to containerd's CRI; packages put it there. A variable for the tests.
var dropInFile = "/etc/containerd/conf.d/godwit.toml"

var dropIn = packaging.ContainerdDropIn

// checkFiles looks at directories and keys of the node, and at what names the runtime to containerd.
func checkFiles(cfg *config.Config) []finding {
	return []finding{checkDirs(cfg), checkKeys(cfg), checkDropIn(dropInFile)}
}

func checkDirs(cfg *config.Config) finding {
	f := finding{Check: dirsCheck, OK: true, Detail: cfg.StateDir + ", " + cfg.RunDir}
	if faulty := faultyDirs(cfg); len(faulty) > 0 {
		f.OK, f.Detail = false, strings.Join(faulty, ", ")+": missing, or others than root may write there"
		f.Remedy = "godwit doctor --fix makes them"
	}
	return f
}

// faultyDirs are those which are not there, or which others may write. What cannot be looked at is one of them.
func faultyDirs(cfg *config.Config) (faulty []string) {
	for _, dir := range []string{cfg.StateDir, cfg.RunDir} {
		info, err := os.Stat(dir)
		if err != nil || !info.IsDir() || info.Mode().Perm()&0o022 != 0 {
			faulty = append(faulty, dir)
		}
	}
	return faulty
}

func checkKeys(cfg *config.Config) finding {
	f := finding{Check: keysCheck, OK: true, Detail: "read by root alone"}
	if open := openKeys(cfg); len(open) > 0 {
		f.OK, f.Detail = false, strings.Join(open, ", ")+": others than root may read it"
		f.Remedy = "godwit doctor --fix takes the right from them; if others were on this host, make new keys"
	}
	return f
}

// openKeys are the private keys that others than their owner may use.
func openKeys(cfg *config.Config) (open []string) {
	for _, key := range []string{cfg.TLS.Key, filepath.Join(cfg.PKIDir(), "ca.key")} {
		if info, err := os.Stat(key); err == nil && info.Mode().Perm()&0o077 != 0 {
			open = append(open, key)
		}
	}
	return open
}

// checkDropIn misses the file where containerd is configured by files.
func checkDropIn(file string) finding {
	f := finding{Check: dropInCheck, OK: true, Detail: file}
	_, err := os.Stat(file)
	if err == nil {
		return f
	}
	if _, conf := os.Stat(filepath.Dir(filepath.Dir(file))); errors.Is(err, fs.ErrNotExist) && errors.Is(conf,
		fs.ErrNotExist) {
		f.Detail = "containerd has no configuration here"
		return f
	}
	f.OK, f.Detail = false, fmt.Sprintf("%v: a pod that asks for godwit is told that there is no such runtime", err)
	f.Remedy = "godwit doctor --fix writes it"
	return f
}
