package cli

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/config"
	"godwit.dev/godwit/migrate/controller"
	"godwit.dev/godwit/migrate/node"
	"godwit.dev/godwit/migrate/store/storetest"
	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// noShims is a node where nothing runs; with err, one that cannot say.
type noShims struct {
	node.Shims
	err error
}

func (n noShims) List() ([]*nodev1.VM, error) { return nil, n.err }

// rm --uid removes a VM whose name no command line can say, and no other. A list that is cut short is no proof that
// there is none.
func TestRmByUID(t *testing.T) {
	st := storetest.NewMemory()
	old, other := &nodev1.VM{Namespace: "default", Id: "a/\x1b../b"}, &nodev1.VM{Namespace: "default", Id: "u-old"}
	for uid, vm := range map[string]*nodev1.VM{"u-old": old, "u-other": other} {
		if _, err := st.Apply(t.Context(), vm, 0,
			transition.Change{Record: &nodev1.Record{Vm: vm, Uid: uid, Generation: 1}}); err != nil {
			t.Fatal(err)
		}
	}
	records, cfg := controller.New(st), config.Default()
	rm := func(err error, args ...string) (code int, out, said string) {
		srv, serr := controller.NewServer()
		if serr != nil {
			t.Fatal(serr)
		}
		nodev1.RegisterNodeService(srv, &node.Service{Config: cfg, Records: records, Shims: noShims{err: err},
			Reachable: func(context.Context) error { return nil }})
		socket := place(t)
		defer serve(t, srv, socket)()
		var stdout, stderr bytes.Buffer
		code = Run(t.Context(), append([]string{"-n", "default", "--socket", socket, "rm", "--keep-snapshots"}, args...),
			&stdout, &stderr)
		return code, stdout.String(), stderr.String()
	}
	if code, _, said := rm(nil, "--uid", "u-none"); code != 3 ||
		!strings.Contains(said, "no VM has it") {
		t.Errorf("a uid that nobody has: %d, %s", code, said)
	}
	if code, _, said := rm(errdefs.ErrUnavailable, "--uid", "u-none"); code != 6 ||
		!strings.Contains(said, "not in what could be listed") {
		t.Errorf("a list that is cut short: %d, %s", code, said)
	}
	if code, out, said := rm(nil, "--uid", "u-old"); code != 0 || !strings.Contains(out, "removed") ||
		strings.Contains(out, "\x1b") {
		t.Errorf("%d, %q, %s", code, out, said)
	}
	if resp, err := records.List(context.Background(), &nodev1.ListRequest{}); err != nil || len(resp.GetRecords()) != 1 ||
		resp.GetRecords()[0].GetUid() != "u-other" {
		t.Errorf("what is left: %v, %v", resp, err)
	}
}
