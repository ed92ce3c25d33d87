package cache

import (
	"os"
	"path/filepath"
	"sync"
	"testing"
)

// A directory is removed also while a process that had opened it before still makes files in it.
func TestEmptyOutlastsLateFiles(t *testing.T) {
	for range 200 {
		path := filepath.Join(t.TempDir(), "gone")
		if err := os.Mkdir(path, 0o700); err != nil {
			t.Fatal(err)
		}
		root, err := os.OpenRoot(path)
		if err != nil {
			t.Fatal(err)
		}
		var late sync.WaitGroup
		late.Go(func() {
			for range 50 {
				f, err := root.Create("flag")
				if err != nil { // the directory is gone
					return
				}
				f.Close()
			}
		})
		err = empty(path)
		late.Wait()
		root.Close()
		if err != nil {
			t.Fatal(err)
		}
	}
}
