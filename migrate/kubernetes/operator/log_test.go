package operator_test

import (
	"bytes"
	"errors"
	"log/slog"
	"testing"

	"godwit.dev/godwit/migrate/kubernetes/operator"
)

// Each error of the framework is told, and nothing that is for its own authors.
func TestErrorsLogged(t *testing.T) {
	var said bytes.Buffer
	plain := slog.NewTextHandler(&said, &slog.HandlerOptions{Level: slog.LevelDebug,
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		}})
	log := operator.Logger(slog.New(plain)).WithName("c").WithValues("vm", "a")
	log.Error(errors.New("refused"), "write", "n", 1)
	log.V(3).Error(errors.New("deep"), "write")
	log.Error(nil, "odd")
	log.Info("started")
	log.V(1).Info("chatter")
	want := `level=ERROR msg=write logger=c vm=a n=1 err=refused
level=ERROR msg=write logger=c vm=a err=deep
level=WARN msg=odd logger=c vm=a
level=INFO msg=started logger=c vm=a
`
	if said.String() != want {
		t.Errorf("said\n%s\nwant\n%s", said.String(), want)
	}
}
