package nodesetup

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/containerd/errdefs"
	certificates "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"godwit.dev/godwit/internal/retry"
	"godwit.dev/godwit/migrate/kubernetes/authority"
	"godwit.dev/godwit/migrate/pki"
)

const (
	// grantBound is how long a request may wait for the operator.
	grantBound = 2 * time.Minute
	grantPause = 500 * time.Millisecond
	// renewPause is between two looks at a certificate, and errorPause after one that failed.
	renewPause = time.Hour
	errorPause = time.Minute
)

// Certificate is the one of a node, by which nodes and controllers know it.
type Certificate struct {
	Client    kubernetes.Interface
	Dir       string
	Node      string
	Namespace string // of the operator
	Log       *slog.Logger
}

// Keep renews the certificate until ctx ends.
func (c Certificate) Keep(ctx context.Context) {
	for ctx.Err() == nil {
		pause := renewPause
		if _, err := c.Ensure(ctx, time.Now()); err != nil && ctx.Err() == nil {
			c.Log.WarnContext(ctx, "the certificate of this node is not renewed", "error", err)
			pause = errorPause
		}
		retry.Sleep(ctx, pause)
	}
}

// Ensure asks for a certificate if there is none, if two thirds of its time are over, or if the CA is another one now.
// It says whether there is a new one.
func (c Certificate) Ensure(ctx context.Context, now time.Time) (bool, error) {
	id, err := pki.LoadOf(c.Node, pki.In(c.Dir))
	switch {
	case err == nil:
		if end, valid := id.Expires(); now.Add(valid / 3).Before(end) {
			if of, err := c.ofCA(ctx, id); err != nil || of {
				return false, err
			}
		}
	case errdefs.IsNotFound(err) || errdefs.IsInvalidArgument(err): // or half-written, or another node's
	default:
		return false, fmt.Errorf("read the certificate of node %s: %w", c.Node, err)
	}
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		return false, fmt.Errorf("certificate of node %s: %w", c.Node, err)
	}
	wish, err := pki.NewWish(c.Node)
	if err != nil {
		return false, err
	}
	chain, err := c.ask(ctx, wish.Request)
	if err != nil {
		return false, fmt.Errorf("certificate of node %s: %w", c.Node, err)
	}
	return true, wish.Grant(c.Dir, chain)
}

// valid reports whether there is a certificate whose time is not over. With it the VMs of the node are looked after,
// and its agent asks for the next one again.
func (c Certificate) valid(now time.Time) bool {
	id, err := pki.LoadOf(c.Node, pki.In(c.Dir))
	if err != nil {
		return false
	}
	end, _ := id.Expires()
	return now.Before(end)
}

// ofCA reports whether the certificate is of the CA that the operator has. Where none is told, it is.
func (c Certificate) ofCA(ctx context.Context, id *pki.Identity) (bool, error) {
	ca, err := authority.Public(ctx, c.Client, c.Namespace)
	if err != nil || ca == nil {
		return err == nil, err
	}
	of, err := id.IssuedBy(ca)
	if err == nil && !of {
		c.Log.InfoContext(ctx, "the cluster has another CA: the certificate of this node is renewed")
	}
	return of, err
}

// ask has the operator sign a request.
func (c Certificate) ask(ctx context.Context, request []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, grantBound)
	defer cancel()
	api := c.Client.CertificatesV1().CertificateSigningRequests()
	csr, err := api.Create(ctx, &certificates.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "godwit-node-"},
		Spec: certificates.CertificateSigningRequestSpec{Request: request, SignerName: authority.Signer,
			Usages: authority.Usages},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("ask for it: %w", err)
	}
	c.Log.InfoContext(ctx, "asks for the certificate of this node", "request", csr.Name)
	name := csr.Name
	for {
		if csr, err = api.Get(ctx, name, metav1.GetOptions{}); err == nil {
			if len(csr.Status.Certificate) > 0 {
				return csr.Status.Certificate, nil
			}
			if why := authority.Refusal(csr); why != nil {
				return nil, fmt.Errorf("CertificateSigningRequest %s is %s: %s: %w", name, why.Type, why.Message,
					errdefs.ErrPermissionDenied)
			}
		}
		if retry.Sleep(ctx, grantPause); ctx.Err() != nil {
			return nil, errors.Join(fmt.Errorf("wait until the operator signs CertificateSigningRequest %s: %w", name,
				ctx.Err()), err)
		}
	}
}
