package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"godwit.dev/godwit/api/config"
)

// keyMode is that of a private key.
const keyMode = 0o600

func privateKeys(cfg *config.Config) []string {
	return []string{cfg.TLS.Key, filepath.Join(cfg.PKIDir(), "ca.key")}
}

func checkKeys(cfg *config.Config) finding {
	f := finding{Check: keysCheck, OK: true, Detail: "read by root alone"}
	var faults []string
	fixable := true
	for _, key := range privateKeys(cfg) {
		if fault := keyFault(key); fault != "" {
			faults = append(faults, key+": "+fault)
			fixable = fixable && ownKey(key)
		}
	}
	if len(faults) == 0 {
		return f
	}
	f.OK, f.Detail = false, strings.Join(faults, ", ")
	f.Remedy = "godwit doctor --fix takes the right from them; if others were on this host, make new keys"
	if !fixable {
		f.Remedy = "give godwit key files of its own that root alone reads (mode 0600), not links. " +
			"If others were on this host, make new keys"
	}
	return f
}

// keyFault is what is wrong with a key; a link is well if it leads to a key that is.
func keyFault(key string) string {
	info, err := os.Stat(key)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return ""
	case err != nil:
		return fmt.Sprintf("it cannot be looked at: %v", errors.Unwrap(err))
	case info.Mode().Perm()&0o077 != 0 || ownerOf(info) != owner:
		return "others than root may read it"
	}
	return ""
}

// openKeys are the keys with a fault that doctor --fix takes the right from.
func openKeys(cfg *config.Config) (open []string) {
	for _, key := range privateKeys(cfg) {
		if keyFault(key) != "" && ownKey(key) {
			open = append(open, key)
		}
	}
	return open
}

// ownKey: the key is a file of root's with this name alone.
func ownKey(key string) bool {
	f, err := openKey(key, unix.O_PATH)
	if err == nil {
		_ = f.Close()
	}
	return err == nil
}

// openKey opens a key of root's. Through a link, or a second name, the file of another program would be changed: who
// may write the directory, or could once, may have made it.
func openKey(key string, how int) (*os.File, error) {
	dir, err := os.OpenFile(filepath.Dir(key), unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	fd, err := unix.Openat(int(dir.Fd()), filepath.Base(key), how|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", key, err)
	}
	f := os.NewFile(uintptr(fd), key)
	info, err := f.Stat()
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	st := info.Sys().(*syscall.Stat_t)
	if !info.Mode().IsRegular() || st.Uid != owner || st.Nlink != 1 {
		_ = f.Close()
		return nil, fmt.Errorf("%s is no file of root's, or has other names too", key)
	}
	return f, nil
}

// closeKey keeps a key from others than root.
func closeKey(key string) error {
	f, err := openKey(key, unix.O_RDONLY)
	if err != nil {
		return err
	}
	return errors.Join(f.Chmod(keyMode), f.Close())
}
