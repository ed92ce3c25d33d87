package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"godwit.dev/godwit/api/config"
	"godwit.dev/godwit/packaging"
)

const tunDevice = "/dev/net/tun"

// dirMode is that of state_dir and run_dir: VMMs, which are users of their own, pass through.
const dirMode = 0o711

// dropInFile names the runtime to containerd's CRI; packages put it there. A variable for the tests.
var dropInFile = "/etc/containerd/conf.d/godwit.toml"

// owner of the node's files is root. A variable for the tests.
var owner uint32

func ownerOf(info fs.FileInfo) uint32 { return info.Sys().(*syscall.Stat_t).Uid }

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
		if err != nil || !info.IsDir() || info.Mode().Perm()&0o022 != 0 || ownerOf(info) != owner {
			faulty = append(faulty, dir)
		}
	}
	return faulty
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
