package archive

import (
	"io/fs"
	"os"
	"path/filepath"
)

// Info is what a path is.
type Info struct {
	Path string      `json:"path"` // with all symbolic links followed, unless they lead nowhere
	Mode fs.FileMode `json:"mode"` // of what a link leads to
	Link bool        `json:"link"` // the path itself is a symbolic link
	Size int64       `json:"size"`
}

// Look says what a path is. What a link leads to counts, unless it leads nowhere.
func Look(name string) (*Info, error) {
	own, err := os.Lstat(name)
	if err != nil {
		return nil, err
	}
	link := own.Mode().Type() == fs.ModeSymlink
	info := &Info{Path: filepath.Clean(name), Mode: own.Mode(), Size: own.Size(), Link: link}
	real, err := filepath.EvalSymlinks(name)
	if err != nil { // the name itself is there
		return info, nil
	}
	followed, err := os.Lstat(real)
	if err != nil {
		return nil, err
	}
	info.Path, info.Mode, info.Size = real, followed.Mode(), followed.Size()
	return info, nil
}
