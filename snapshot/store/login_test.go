package store_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/snapshot/store"
	"godwit.dev/godwit/snapshot/store/storetest"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// answers is a controller.
type answers struct {
	login *nodev1.LoginResponse
	err   error
	asked []string
}

func (a *answers) Login(_ context.Context, r *nodev1.LoginRequest) (*nodev1.LoginResponse, error) {
	a.asked = append(a.asked, r.GetRepository())
	return a.login, a.err
}

// The login of a controller counts for the next push, in place of what the node has, and a changed one for the next.
// An error of the controller is none of "no login".
func TestWithLogin(t *testing.T) {
	r := storetest.Start(t, &storetest.Registry{Token: 1000})
	own := r.Config(t, "p/uid1")
	own.DockerConfig = t.TempDir() // the node has no login
	right := &nodev1.LoginResponse{Username: storetest.User, Password: storetest.Password}
	wrong := &nodev1.LoginResponse{Username: storetest.User, Password: "of before"}
	for name, test := range map[string]struct {
		from answers
		ok   func(error) bool // of asking
		push func(error) bool
	}{
		"the right one":     {answers{login: right}, isNil, isNil},
		"a wrong one":       {answers{login: wrong}, isNil, errdefs.IsUnauthorized},
		"the node's own":    {answers{login: &nodev1.LoginResponse{}}, isNil, errdefs.IsUnauthorized},
		"no Kubernetes":     {answers{err: errdefs.ErrNotImplemented}, isNil, errdefs.IsUnauthorized},
		"no answer":         {answers{err: errdefs.ErrUnavailable}, errdefs.IsUnavailable, nil},
		"it is refused":     {answers{err: errdefs.ErrPermissionDenied}, errdefs.IsPermissionDenied, nil},
		"an unusual answer": {answers{err: errors.New("x")}, isErr, nil},
	} {
		t.Run(name, func(t *testing.T) {
			r.Expire()
			cfg, err := own.WithLogin(t.Context(), &test.from)
			if !test.ok(err) || len(test.from.asked) != 1 || test.from.asked[0] != own.Repository {
				t.Fatalf("%v, asked %v", err, test.from.asked)
			}
			if test.push == nil {
				return
			}
			_, a := noise(100)
			if err := openStore(t, cfg).Put(t.Context(), store.Blob(a.Digest), a); !test.push(err) {
				t.Errorf("push: %v", err)
			}
		})
	}
	none := &answers{}
	layout := store.Config{Repository: store.LayoutPrefix + t.TempDir()}
	if cfg, err := layout.WithLogin(t.Context(), none); err != nil || cfg.Login != nil || len(none.asked) != 0 {
		t.Errorf("of a directory a login was asked: %v, %v", none.asked, err)
	}
}

func isNil(err error) bool { return err == nil }
func isErr(err error) bool { return err != nil }

// A mirror is another program: it is not told the login of the registry.
func TestMirrorGetsNoLogin(t *testing.T) {
	var told []string
	mirror := storetest.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		told = append(told, q.Header.Get("Authorization"))
		w.Header().Set("WWW-Authenticate", `Basic realm="m"`)
		w.WriteHeader(http.StatusUnauthorized)
	}))
	r := storetest.Start(t, &storetest.Registry{Token: 1000})
	cfg := r.Config(t, "p/uid1")
	cfg.DockerConfig = t.TempDir()
	cfg.Login = &store.Login{Username: storetest.User, Password: storetest.Password}
	cfg.HostsDir = hosts(t, r.Host(), fmt.Sprintf("server = %q\n[host.%q]\ncapabilities = [\"pull\"]\n", r.URL, mirror))
	st := openStore(t, cfg)
	_, a := noise(100)
	if err := st.Put(t.Context(), store.Blob(a.Digest), a); err != nil {
		t.Fatal(err)
	}
	if _, err := store.ReadBlob(t.Context(), st, a.Digest, a.Size); err != nil {
		t.Fatal(err)
	}
	if len(told) == 0 || strings.Join(told, "") != "" {
		t.Errorf("the mirror was told %q", told)
	}
}

// A login is in the job of a worker, and in no text.
func TestLoginIsNoText(t *testing.T) {
	cfg := store.Config{Repository: "r", Login: &store.Login{Username: "u", Password: "hunter2", IdentityToken: "hunter2"}}
	var log strings.Builder
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "login", cfg.Login, "value", *cfg.Login, "config", cfg)
	for _, text := range []string{fmt.Sprint(cfg, cfg.Login, *cfg.Login), fmt.Sprintf("%v %+v %#v", cfg, *cfg.Login,
		*cfg.Login), fmt.Sprintf("%#v %s %q %x", cfg.Login, cfg.Login, cfg.Login, *cfg.Login), log.String()} {
		if strings.Contains(text, "hunter2") || strings.Contains(text, "68756e74657232") {
			t.Errorf("a text has it: %s", text)
		}
	}
	data, err := json.Marshal(cfg)
	if err != nil || !strings.Contains(string(data), "hunter2") {
		t.Errorf("the job of a worker has no login: %v", err)
	}
}
