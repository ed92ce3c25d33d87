package k8s

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"godwit.dev/godwit/integration/harness"
)

// Watch is kubectl get --watch of an object.
type Watch struct {
	process *harness.Process
	log     string // each state of the object: a line
}

// Watch sees each state of an object, as a line that a template of kubectl makes of it. It answers when the object's
// state now is seen. Only one watch of a name runs at a time.
func (c *Cluster) Watch(ctx context.Context, name, template string, object ...string) (*Watch, error) {
	w := &Watch{log: filepath.Join(c.Dir, "log", c.wire.Name+"-"+name+".log")}
	if err := os.Remove(w.log); err != nil && !errors.Is(err, os.ErrNotExist) { // of a watch before
		return nil, err
	}
	told := func(context.Context) error {
		states, err := w.States()
		if err == nil && len(states) == 0 {
			err = fmt.Errorf("%v is not watched yet", object)
		}
		return err
	}
	var err error
	w.process, err = c.wire.Daemon(ctx, name, told, c.program("kubectl"), append([]string{
		"--kubeconfig=" + c.config("admin"), "--cache-dir=" + c.path("cache"), "get", "--watch", "-o", template},
		object...)...)
	return w, err
}

// States are those that were seen, the oldest first.
func (w *Watch) States() (all []string, err error) {
	data, err := os.ReadFile(w.log)
	for line := range strings.Lines(string(data)) {
		if strings.HasSuffix(line, "\n") {
			all = append(all, strings.TrimSpace(line))
		}
	}
	return all, err
}

// End ends the watch, and fails if it has ended before: it did not see all then.
func (w *Watch) End() error {
	return errors.Join(w.process.Exited(), w.process.Stop())
}
