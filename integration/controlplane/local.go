package controlplane

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Admin is the file of the user of a Local, who may do everything.
const Admin = "admin"

const (
	// readyBound is far above the seconds that an API server needs on a busy machine.
	readyBound = 2 * time.Minute
	readyPause = 50 * time.Millisecond
)

// Local is an API server and its etcd on this host. No controller runs: nothing collects garbage, and no namespace
// ends.
type Local struct {
	*Server
	Token string // of Admin

	tools     string
	etcd, api *process
}

// Start starts both in dir, with the programs of tools, and answers when the API server is ready.
func Start(ctx context.Context, dir, tools string) (_ *Local, err error) {
	if _, err := os.Stat(filepath.Join(tools, ".k8s")); err != nil {
		return nil, fmt.Errorf("find the programs of Kubernetes (make test-k8s builds them): %w", err)
	}
	addresses := make([]string, 3)
	for i := range addresses {
		if addresses[i], err = FreeAddress(); err != nil {
			return nil, err
		}
	}
	l := &Local{tools: tools, Server: &Server{Dir: dir, Address: addresses[0], Etcd: "http://" + addresses[1],
		EtcdPeer: "http://" + addresses[2]}}
	tokens, err := l.WriteKeys([]User{{Admin, Admin, "system:masters"}})
	if err != nil {
		return nil, err
	}
	l.Token = tokens[Admin]
	if err = l.StartEtcd(); err == nil {
		err = l.StartAPI(ctx)
	}
	if err != nil {
		l.Stop()
		return nil, err
	}
	return l, nil
}

// FreeAddress is an address of this host where nothing listens.
func FreeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("find a free port: %w", err)
	}
	defer l.Close()
	return l.Addr().String(), nil
}

// Stop ends both.
func (l *Local) Stop() {
	l.KillAPI()
	l.KillEtcd()
}

// StartEtcd starts etcd, also again.
func (l *Local) StartEtcd() (err error) {
	l.etcd, err = spawn(l.Path("etcd.log"), filepath.Join(l.tools, "etcd", "server"), l.EtcdArgs()...)
	return err
}

// KillEtcd ends etcd as a loss of power does.
func (l *Local) KillEtcd() { l.etcd.kill() }

// Compact makes etcd forget what was before a revision, as the API server does every five minutes.
func (l *Local) Compact(ctx context.Context, revision uint64) error {
	body := fmt.Sprintf(`{"revision":%d,"physical":true}`, revision)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, l.Etcd+"/v3/kv/compaction", strings.NewReader(body))
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("compact etcd: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("compact etcd: it says %s", resp.Status)
	}
	return nil
}

// PutBack replaces what etcd holds by what copied holds, a directory that Copy has made, while neither program runs.
func (l *Local) PutBack(ctx context.Context, copied string) error {
	l.Stop()
	if err := os.RemoveAll(l.Path("etcd")); err != nil {
		return err
	}
	if err := os.CopyFS(l.Path("etcd"), os.DirFS(copied)); err != nil {
		return err
	}
	return errors.Join(l.StartEtcd(), l.StartAPI(ctx))
}

// Copy copies what etcd holds, while neither program runs.
func (l *Local) Copy(ctx context.Context, to string) error {
	l.Stop()
	if err := os.CopyFS(to, os.DirFS(l.Path("etcd"))); err != nil {
		return err
	}
	return errors.Join(l.StartEtcd(), l.StartAPI(ctx))
}

// KillAPI ends the API server.
func (l *Local) KillAPI() { l.api.kill() }

// StartAPI starts the API server, also again, and waits until it is ready.
func (l *Local) StartAPI(ctx context.Context) error {
	// No endpoints and no lease of its own: each write of the server makes etcd's revision larger, which tests look at.
	args, err := l.APIArgs("--bind-address=127.0.0.1", "--authorization-mode=RBAC", "--endpoint-reconciler-type=none",
		"--feature-gates=APIServerIdentity=false,UnknownVersionInteroperabilityProxy=false",
		"--disable-admission-plugins=ServiceAccount", "--service-cluster-ip-range=10.96.0.0/16")
	if err != nil {
		return err
	}
	audit, err := l.auditArgs()
	if err != nil {
		return err
	}
	args = append(args, audit...)
	if l.api, err = spawn(l.Path("apiserver.log"), filepath.Join(l.tools, "k8s", "kube-apiserver"), args...); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, readyBound)
	defer cancel()
	for {
		err := l.ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for the API server: %w: %s", err, l.said())
		case <-l.api.ended:
			return fmt.Errorf("the API server has ended: %s", l.said())
		case <-time.After(readyPause):
		}
	}
}

// said is the end of what the API server has logged.
func (l *Local) said() string {
	const most = 1000
	log, err := os.ReadFile(l.Path("apiserver.log"))
	if err != nil {
		return err.Error()
	}
	return string(log[max(0, len(log)-most):])
}

func (l *Local) ready(ctx context.Context) error {
	ca, err := os.ReadFile(l.CA())
	if err != nil {
		return err
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, DisableKeepAlives: true}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+l.Address+"/readyz", nil)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+l.Token)
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	said, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("the API server says %s: %.500s", resp.Status, said)
	}
	return err
}
