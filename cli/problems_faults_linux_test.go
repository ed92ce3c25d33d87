package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	digest "github.com/opencontainers/go-digest"

	"godwit.dev/godwit/api/config"
	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/client"
	"godwit.dev/godwit/internal/durable"
	"godwit.dev/godwit/migrate/controller"
	"godwit.dev/godwit/migrate/engine"
	"godwit.dev/godwit/migrate/node"
	"godwit.dev/godwit/migrate/transition"
	"godwit.dev/godwit/snapshot/store"
	"godwit.dev/godwit/vmm/cloudhypervisor"
	"godwit.dev/godwit/vmm/kvm"
	"godwit.dev/godwit/vmm/qemu"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// fault is what is wrong around a VM, as the part that meets it says so. A daemon refuses an order with it, or its
// operation ends so.
type fault struct {
	what  string
	err   error
	class int  // exit code
	ends  bool // the operation was under way
}

// faultsAround are made by the parts themselves, against a registry, sockets and files that are as bad as they say.
func faultsAround(t *testing.T) []fault {
	t.Helper()
	nowhere := filepath.Join(t.TempDir(), "none")
	_, noFirst := cloudhypervisor.New(cloudhypervisor.Driver{Binary: nowhere}).Probe(t.Context())
	second, err := qemu.New(qemu.Driver{Binary: nowhere})
	if err != nil {
		t.Fatal(err)
	}
	_, noSecond := second.Probe(t.Context())
	_, noKVM := cloudhypervisor.New(cloudhypervisor.Driver{Binary: "/bin/true",
		Host: kvm.Host{Device: nowhere}}).Probe(t.Context())
	elsewhere := &nodev1.Record{Vm: &nodev1.VM{Namespace: "default", Id: "web"}, Owner: &nodev1.Owner{Node: "b"}}
	refused := controller.PullController.Allows(controller.WithPeer(t.Context(), "a"), elsewhere, "a")
	_, noStore := (&node.Service{Config: &config.Config{Node: "a"}}).Hibernate(t.Context(),
		&nodev1.HibernateRequest{Vm: &nodev1.VM{Namespace: "default", Id: "web"}})
	all := []fault{
		{"no place for snapshots", noStore, 4, false},
		{"the registry wants a login", refusedBy(t, http.StatusUnauthorized), 7, true},
		{"the registry's login has too few rights", refusedBy(t, http.StatusForbidden), 7, true},
		{"the registry has no such repository", refusedBy(t, http.StatusNotFound), 4, true},
		{"the registry is asked too often", refusedBy(t, http.StatusTooManyRequests), 6, true},
		{"the registry fails", refusedBy(t, http.StatusBadGateway), 6, true},
		{"the registry is full", refusedBy(t, http.StatusInsufficientStorage), 8, true},
		{"the registry does not answer", refusedBy(t, 0), 6, true},
		{"the state directory is full", fmt.Errorf("write the VM's state: %w", durable.DiskError(&fs.PathError{Op: "write",
			Path: "/var/lib/godwit/vms/default/web/node.json", Err: syscall.ENOSPC})), 8, true},
		{"the controller does not answer", fmt.Errorf("look who has the VM: %w",
			record.Unreachable("HOST:7412", errors.New("connection refused"))), 6, false},
		{"the controller's store was put back from a copy", transition.Closed(&nodev1.StoreState{Waiting: true,
			Missing: []string{"b"}}), 6, false},
		{"the controller's store is older than it was", transition.Closed(&nodev1.StoreState{Behind: &nodev1.Doubt{
			Reason: "it had 9 changes, and has 7"}}), 6, false},
		{"there is no Cloud Hypervisor", noFirst, 4, true},
		{"there is no QEMU", noSecond, 4, true},
		{"there is no KVM for Cloud Hypervisor", noKVM, 4, true},
		{"the controller refuses the node", refused, 7, false},
	}
	return all
}

// refusedBy is what the client of registries says of one that answers every request with a status. 0: it does not
// listen any more.
func refusedBy(t *testing.T, status int) error {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v2/" || status == http.StatusNotFound && r.Method == http.MethodHead {
			return
		}
		w.WriteHeader(status)
	}))
	host := strings.TrimPrefix(srv.URL, "http://")
	if status == 0 {
		srv.Close()
	} else {
		t.Cleanup(srv.Close)
	}
	st, err := store.NewRegistry(store.Config{Repository: host + "/vms/web", PlainHTTP: true})
	if err != nil {
		t.Fatal(err)
	}
	data := []byte("pages")
	err = st.Put(t.Context(), store.Blob(digest.FromBytes(data)), store.Bytes(data, digest.FromBytes(data)))
	if err == nil {
		t.Fatalf("a registry that answers %d takes a blob", status)
	}
	return &shownHost{err, host}
}

// shownHost has the name of a registry in the place of a test's address.
type shownHost struct {
	error
	host string
}

func (e *shownHost) Error() string {
	return strings.ReplaceAll(e.error.Error(), e.host, "registry.example")
}
func (e *shownHost) Unwrap() error { return e.error }

// failing is a daemon whose operations all end with err.
type failing struct {
	refuser
	ended *nodev1.StatusResponse
}

func (f failing) Hibernate(context.Context, *nodev1.HibernateRequest) (*nodev1.StatusResponse, error) {
	return f.ended, nil
}

// What is wrong around a VM is told in three parts, without a class and a word of the inside. It is so of an order that
// is refused, and of an operation that fails.
func TestFaultsAround(t *testing.T) {
	var rows []string
	for _, f := range faultsAround(t) {
		socket := served(t, refuser{err: f.err, rec: &nodev1.Record{}}, movesRefused{err: f.err})
		if f.ends {
			vm := &nodev1.VM{Namespace: "default", Id: "web"}
			err := &engine.StepError{Step: "capture", VM: vm, Operation: "8d3f", Err: f.err}
			op := &nodev1.Operation{Id: "8d3f", Vm: vm, Kind: nodev1.Kind_KIND_HIBERNATE, Source: "a",
				Phase: nodev1.Phase_PHASE_FAILED, Reason: err.Error(), Class: record.Class(err)}
			socket = served(t, failing{refuser{rec: &nodev1.Record{}}, &nodev1.StatusResponse{Operation: op, Settled: true}},
				movesRefused{})
		}
		text, code := complains(t, socket, "hibernate web")
		if code != f.class {
			t.Errorf("%s: exit code %d, want %d: %s", f.what, code, f.class, text)
		}
		checkFault(t, f.what, text)
		text = strings.ReplaceAll(text, filepath.Dir(socket), "DIR")
		rows = append(rows, fmt.Sprintf("| %s | %d | %s |", f.what, code, hidden(text)))
	}
	inPage(t, "faults", "| what is wrong | exit code | godwit hibernate web says |\n|---|---|---|\n"+
		strings.Join(rows, "\n")+"\n")
}

// checkFault is checkText of what no command of godwit can mend.
func checkFault(t *testing.T, what, text string) {
	t.Helper()
	if strings.Count(text, "godwit: ") != 1 || internal.MatchString(text) || strings.Contains(text, "operation 8d3f") {
		t.Errorf("%s: %s", what, text)
	}
	if !strings.Contains(text, " To ") && !strings.Contains(text, " Name one ") {
		t.Errorf("%s: it does not say what to do: %s", what, text)
	}
	for _, class := range internalClasses {
		if strings.Contains(text, ": "+class) {
			t.Errorf("%s: a class: %s", what, text)
		}
	}
}

var (
	someSum  = regexp.MustCompile(`sha256:[0-9a-f]{64}`)
	someTemp = regexp.MustCompile(`/tmp/\w+/\d+/`)
)

// hidden leaves out of a text what differs from run to run.
func hidden(text string) string {
	text = someSum.ReplaceAllString(text, "sha256:..")
	return someTemp.ReplaceAllString(text, "/DIR/")
}

// What is wrong on this node is told in the same shape: by its containerd, a command that is not there, and sockets.
func TestFaultsHere(t *testing.T) {
	none := filepath.Join(t.TempDir(), "c")
	seen := served(t, refuser{rec: &nodev1.Record{Owner: &nodev1.Owner{Node: "a"}}}, movesRefused{})
	rows := []string{}
	add := func(what, text string, code int) {
		checkFault(t, what, text)
		rows = append(rows, fmt.Sprintf("| %s | %d | %s |", what, code, hidden(strings.ReplaceAll(text, none, "SOCKET"))))
	}
	for _, verb := range []string{"exec web true", "start web", "images", "pull alpine"} {
		text, code := complains(t, seen, "--containerd "+none+" "+verb)
		add("containerd does not run: `"+verb+"`", text, code)
	}
	old := containerdWith(t)
	text, code := complains(t, seen, "--containerd "+old+" run alpine")
	add("containerd is too old: `run alpine`", text, code)
	empty := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(empty.Close)
	host := strings.TrimPrefix(empty.URL, "http://")
	text, code = complains(t, seen, "--containerd "+old+" pull "+host+"/none:1")
	add("the registry has no such image: `pull`", strings.ReplaceAll(text, host, "registry.example"), code)
	for what, err := range map[string]error{
		"the registry stops in a pull": fmt.Errorf("pull image registry.example/shop:1: %w", &client.StalledError{
			At: client.PullProgress{Phase: "fetch", Done: 1 << 20, Total: 9 << 20}, Silence: time.Minute}),
		"the socket of godwitd is not the user's": record.Unreachable("/run/godwit/godwitd.sock", syscall.EACCES),
		"godwitd is not there":                    record.Unreachable("/run/godwit/godwitd.sock", syscall.ECONNREFUSED),
		"the command of an exec is not there": notRun(&client.CommandError{Code: client.NoCommand, Err: fmt.Errorf(
			`OCI runtime exec failed: exec: "/no/such": stat /no/such: no such file or directory: %w`, errdefs.ErrNotFound)}),
	} {
		var log strings.Builder
		(&options{output: "text"}).printError(&log, err)
		_, code := classify(err)
		add(what, strings.TrimSpace(log.String()), code)
	}
	slices.Sort(rows)
	inPage(t, "node", "| what is wrong | exit code | says |\n|---|---|---|\n"+strings.Join(rows, "\n")+"\n")
}
