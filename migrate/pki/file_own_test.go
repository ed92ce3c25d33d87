package pki_test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/migrate/pki"
)

// Certificates of one's own CAs, two of them, one with two intermediate ones: nodes and
// controller know each other, each by its name.
func TestOwnCAs(t *testing.T) {
	rootA, rootB := newIssuer(t, "site A", nil), newIssuer(t, "site B", nil)
	between := newIssuer(t, "machines", newIssuer(t, "site A 2026", rootA))
	alpha, beta := files(t), files(t)
	controller := equip(t, alpha, leaf("godwit://node/alpha", "godwit://controller/alpha"), between, rootB, rootA)
	node := equip(t, beta, leaf("godwit://node/beta"), rootB, rootA, rootB)
	a, b := load(t, alpha), load(t, beta)
	for name, c := range map[string]struct {
		server, client *pki.Identity
		to             string // empty: the controller
		shown, taken   *x509.Certificate
	}{
		"controller to node":       {b, a, "beta", node, controller},
		"node to node":             {a, b, "alpha", controller, node},
		"node to controller":       {a, b, "", controller, node},
		"controller to controller": {a, a, "", controller, controller},
	} {
		config := c.client.Client()
		if c.to != "" {
			config = c.client.ClientOf(c.to)
		}
		m := meet(t, c.server.Server(false), config)
		if m.refused != nil || m.refuses != nil {
			t.Errorf("%s: client: %v; server: %v", name, m.refused, m.refuses)
			continue
		}
		if !m.client.Equal(c.shown) || !m.server.Equal(c.taken) {
			t.Errorf("%s: the client saw %v, the server %v", name, m.client.Subject, m.server.Subject)
		}
	}
}

// What does not fit is refused by its field, with the remedy, at the end that finds it.
func TestOwnCARefused(t *testing.T) {
	root, other := newIssuer(t, "site A", nil), newIssuer(t, "elsewhere", nil)
	between := newIssuer(t, "machines", root)
	alpha, beta, old, foreign := files(t), files(t), files(t), files(t)
	equip(t, alpha, leaf("godwit://node/alpha"), between, root)
	equip(t, beta, leaf("godwit://node/beta"), between, root)
	equip(t, old, expired(leaf("godwit://node/old")), between, root)
	equip(t, foreign, leaf("godwit://node/beta"), other, other)
	a := load(t, alpha)
	// bare is a certificate that is shown without what the identity would look at first.
	bare := func(f pki.Files, chain int) *tls.Config {
		pair, err := tls.LoadX509KeyPair(f.Cert, f.Key)
		if err != nil {
			t.Fatal(err)
		}
		pair.Certificate = pair.Certificate[:chain]
		return shows(pair)
	}
	for name, c := range map[string]struct {
		server, client *tls.Config
		atServer       bool
		says           []string
	}{
		"another node": {load(t, beta).Server(false), a.ClientOf("gamma"), false,
			[]string{`node "beta", not "gamma"`, "peer.advertise", "godwit://node/gamma"}},
		"a node for the controller": {load(t, beta).Server(false), a.Client(), false, []string{"godwit://controller/NAME",
			"tls.cert"}},
		"an expired server": {load(t, old).Server(false), a.ClientOf("old"), false,
			[]string{"godwit://node/old", "valid from", "renew it in tls.cert", "godwit node join"}},
		"an expired client": {a.Server(false), load(t, old).ClientOf("alpha"), false,
			[]string{"valid from", "renew it in tls.cert", old.Cert}},
		"one that shows it": {a.Server(false), bare(old, 2), true, []string{"valid from", "renew it in tls.cert"}},
		"a server of another CA": {load(t, foreign).Server(false), a.ClientOf("beta"), false,
			[]string{`issued by "elsewhere"`, "leads to no CA in tls.ca"}},
		"a client of another CA": {a.Server(false), bare(foreign, 1), true,
			[]string{`issued by "elsewhere"`, "leads to no CA in tls.ca"}},
		"a server without its CA's": {bare(beta, 1), a.ClientOf("beta"), false, []string{`issued by "machines"`, "tls.ca",
			"intermediate certificates after the node's own in tls.cert"}},
		"a client without its CA's": {a.Server(false), bare(beta, 1), true,
			[]string{`issued by "machines"`, "intermediate certificates"}},
	} {
		m := meet(t, c.server, c.client)
		err := m.refused
		if c.atServer {
			err = m.refuses
		}
		if !errors.Is(err, errdefs.ErrUnauthenticated) {
			t.Errorf("%s: client: %v; server: %v", name, m.refused, m.refuses)
			continue
		}
		for _, word := range c.says {
			if !strings.Contains(err.Error(), word) {
				t.Errorf("%s: %v does not say %q", name, err, word)
			}
		}
	}
}

// Files that no peer would take do not load, whatever is wrong with them.
func TestOwnCAFiles(t *testing.T) {
	root, other := newIssuer(t, "site A", nil), newIssuer(t, "elsewhere", nil)
	between := newIssuer(t, "machines", root)
	server := leaf("godwit://node/alpha")
	server.ExtKeyUsage = server.ExtKeyUsage[:1]
	for name, c := range map[string]struct {
		template *x509.Certificate
		trusts   *issuer
		spoil    func(*testing.T, pki.Files)
		says     []string
	}{
		"no name": {leaf("https://example.org/"), root, nil, []string{"tls.cert", "names no node",
			"godwit://node/NAME"}},
		"no client":     {server, root, nil, []string{"tls.cert", "serverAuth and clientAuth"}},
		"of another CA": {leaf("godwit://node/alpha"), other, nil, []string{"tls.cert", "leads to no CA in tls.ca"}},
		"no intermediate": {leaf("godwit://node/alpha"), root, func(t *testing.T, f pki.Files) {
			first(t, f.Cert)
		}, []string{"tls.cert", "intermediate certificates after"}},
		"half a bundle": {leaf("godwit://node/alpha"), root, func(t *testing.T, f pki.Files) {
			put(t, f.CA, append(inPEM(root.cert), "-----BEGIN CERTIFICATE-----\nMIIB"...))
		}, []string{"tls.ca", "1 readable", "of 2"}},
		"a key among CAs": {leaf("godwit://node/alpha"), root, func(t *testing.T, f pki.Files) {
			key, err := os.ReadFile(f.Key)
			if err != nil {
				t.Fatal(err)
			}
			put(t, f.CA, slices.Concat(inPEM(root.cert), key))
		}, []string{"tls.ca", "PRIVATE KEY"}},
		"no CA": {leaf("godwit://node/alpha"), root, func(t *testing.T, f pki.Files) {
			put(t, f.CA, nil)
		}, []string{"tls.ca", "0 readable"}},
	} {
		f := files(t)
		equip(t, f, c.template, between, c.trusts)
		if c.spoil != nil {
			c.spoil(t, f)
		}
		_, err := pki.Load(f)
		if !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for _, word := range c.says {
			if !strings.Contains(err.Error(), word) {
				t.Errorf("%s: %v does not say %q", name, err, word)
			}
		}
	}
	// A node that has slept through the end of its certificate starts all the same.
	f := files(t)
	equip(t, f, expired(leaf("godwit://node/alpha")), between, root)
	if id := load(t, f); id.Node() != "alpha" {
		t.Errorf("expired: node %q", id.Node())
	}
}

// first leaves the first certificate of a file.
func first(t *testing.T, path string) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(data)
	put(t, path, pem.EncodeToMemory(block))
}

// Certificates that were renewed, in the end by another CA, are shown and taken with the next
// connection. That holds at both ends and without a restart. Those of before are refused once
// their CA is not trusted any more.
func TestRotation(t *testing.T) {
	before, after := newIssuer(t, "2026", nil), newIssuer(t, "2027", nil)
	between := newIssuer(t, "2027 machines", after)
	alpha, beta := files(t), files(t)
	renew := func(f pki.Files, node string, by *issuer, trusts ...*issuer) *x509.Certificate {
		return equip(t, f, leaf("godwit://node/"+node), by, trusts...)
	}
	here, there := renew(alpha, "alpha", before, before), renew(beta, "beta", before, before)
	server, client := load(t, alpha).Server(false), load(t, beta).ClientOf("alpha") // as daemons keep them
	same := func(when string) {
		t.Helper()
		m := meet(t, server, client)
		if m.refused != nil || m.refuses != nil {
			t.Fatalf("%s: client: %v; server: %v", when, m.refused, m.refuses)
		}
		if m.client.SerialNumber.Cmp(here.SerialNumber) != 0 || m.server.SerialNumber.Cmp(there.SerialNumber) != 0 {
			t.Errorf("%s: the server shows %x, its file has %x; the client shows %x, its file has %x",
				when, m.client.SerialNumber, here.SerialNumber, m.server.SerialNumber, there.SerialNumber)
		}
	}
	same("at first")
	here = renew(alpha, "alpha", before, before)
	same("the server has a new certificate")
	there = renew(beta, "beta", before, before)
	same("and the client")
	here, there = renew(alpha, "alpha", before, before, after), renew(beta, "beta", before, before, after)
	same("a second CA is trusted")
	here = renew(alpha, "alpha", between, before, after)
	same("the server's comes after an intermediate one of the second CA")
	late, err := tls.LoadX509KeyPair(beta.Cert, beta.Key)
	if err != nil {
		t.Fatal(err)
	}
	there = renew(beta, "beta", between, after)
	here = renew(alpha, "alpha", after, after)
	same("the first CA is gone")
	if m := meet(t, server, shows(late)); !errors.Is(m.refuses, errdefs.ErrUnauthenticated) {
		t.Errorf("a certificate of a CA that is not trusted any more: %v", m.refuses)
	}
	put(t, alpha.Cert, []byte("half a fi")) // what does not load leaves what was there
	same("a file is being written")
}
