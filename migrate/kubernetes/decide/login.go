package decide

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	corev1 "k8s.io/api/core/v1"

	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// GivenPlace reports whether the controller itself has given a repository to a VM: by the record, the open operation, a
// snapshot, or one that is to be deleted. No node can name such a place for itself. No class counts in any other.
func GivenPlace(repository string, rec *nodev1.Record, owed []*nodev1.Owed) bool {
	return record.IsGiven(rec, repository) || slices.ContainsFunc(owed, func(o *nodev1.Owed) bool {
		return o.GetSnapshot().GetGiven() && o.GetSnapshot().GetRepository() == repository
	})
}

// MayLogIn reports whether a node has something to do in a place that was given: it has the VM, or an operation brings
// the VM to it or from it, or it is to delete a snapshot there.
func MayLogIn(node, repository string, rec *nodev1.Record, owed []*nodev1.Owed) bool {
	if node == "" {
		return false
	}
	return MayHaveKeys(node, repository, rec) || slices.ContainsFunc(owed, func(o *nodev1.Owed) bool {
		return o.GetHold() == nil && GivenPlace(repository, nil, []*nodev1.Owed{o}) && record.Deleter(o) == node
	})
}

// MayHaveKeys reports whether a node makes or reads snapshots in a place that was given: it has the VM, or an operation
// brings the VM to it or from it. Who is to delete there needs no key.
func MayHaveKeys(node, repository string, rec *nodev1.Record) bool {
	op := rec.GetOperation()
	return node != "" && record.IsGiven(rec, repository) &&
		(op.GetSource() == node || op.GetDestination() == node || rec.GetOwner().GetNode() == node)
}

// Secrets are classes with Secrets for the repositories below a prefix, one for all that name the same. There is none
// for a namespace that only classes without a Secret allow: its VMs log in as their nodes do. Of keys those count that
// are wanted: of others a class has no say.
func Secrets(all []v1alpha1.VMSnapshotClass, prefix string, namespace *corev1.Namespace,
	keys Keys) (found []*v1alpha1.VMSnapshotClass) {
	var allowed []*v1alpha1.VMSnapshotClass
	open := false // to the namespace, without a Secret
	for i := range all {
		c := &all[i]
		same := func(other *v1alpha1.VMSnapshotClass) bool { return sameSecrets(other, c, keys) }
		if c.Spec.Repository != prefix {
			continue
		}
		if len(SecretsOf(c, keys)) == 0 {
			open = open || allows(c, namespace)
			continue
		}
		if !slices.ContainsFunc(found, same) {
			found = append(found, c)
		}
		if allows(c, namespace) && !slices.ContainsFunc(allowed, same) {
			allowed = append(allowed, c)
		}
	}
	if len(allowed) > 0 || open {
		return allowed
	}
	return found // the record proves that a class of this repository allowed the namespace once
}

// LoginOf reads the login for a repository out of a Secret; why is what is wrong with the Secret.
func LoginOf(secret *corev1.Secret, repository string) (login *nodev1.LoginResponse, why string) {
	const key = corev1.DockerConfigJsonKey
	host, _, _ := strings.Cut(repository, "/")
	remedy := ": an administrator makes it again, by kubectl create secret docker-registry --docker-server=" + host
	if secret.Type != corev1.SecretTypeDockerConfigJson { // so no other Secret is ever sent to a node
		return nil, fmt.Sprintf("has type %.60q and not %s%s", secret.Type, corev1.SecretTypeDockerConfigJson, remedy)
	}
	var file struct {
		Auths map[string]entry `json:"auths"`
	}
	if json.Unmarshal(secret.Data[key], &file) != nil {
		return nil, "has a key " + key + " that is no configuration of docker" + remedy
	}
	best, length := (*entry)(nil), -1
	wanted := canonical(repository)
	for _, of := range slices.SortedFunc(maps.Keys(file.Auths), plainest) {
		at := place(of)
		if (at == wanted || strings.HasPrefix(wanted, at+"/")) && len(at) > length {
			e := file.Auths[of]
			best, length = &e, len(at)
		}
	}
	if best == nil {
		return nil, "has no login for " + host + " in key " + key + remedy
	}
	if login = best.login(); login == nil {
		return nil, "has a login for " + host + " in key " + key + " that is malformed or empty" + remedy
	}
	return login, ""
}

// plainest has the shortest of several names of one place come first: HOST goes before a URL.
func plainest(a, b string) int { return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b)) }

// place is what an entry of a docker configuration is of: HOST, or HOST/PATH as kubelets take it.
func place(entry string) string {
	at := strings.TrimPrefix(strings.TrimPrefix(entry, "https://"), "http://")
	at = strings.TrimSuffix(at, "/")
	for _, api := range []string{"/v1", "/v2"} {
		at = strings.TrimSuffix(at, api)
	}
	return canonical(at)
}

// canonical has the one name of a registry that has several.
func canonical(repository string) string {
	host, rest, cut := strings.Cut(repository, "/")
	if registry, err := name.NewRegistry(host); err == nil {
		host = registry.RegistryStr()
	}
	if cut {
		host += "/" + rest
	}
	return host
}

// entry of a docker configuration.
type entry struct {
	Username      string `json:"username"`
	Password      string `json:"password"`
	Auth          string `json:"auth"` // base64 of USERNAME:PASSWORD
	IdentityToken string `json:"identitytoken"`
	RegistryToken string `json:"registrytoken"`
}

func (e entry) login() *nodev1.LoginResponse {
	l := &nodev1.LoginResponse{Username: e.Username, Password: e.Password, IdentityToken: e.IdentityToken,
		RegistryToken: e.RegistryToken}
	if e.Auth != "" {
		both, err := base64.StdEncoding.DecodeString(e.Auth)
		if err != nil {
			return nil
		}
		user, password, cut := strings.Cut(strings.TrimRight(string(both), "\x00"), ":")
		if !cut {
			return nil
		}
		l.Username, l.Password = user, password
	}
	if l.IdentityToken == "" && l.RegistryToken == "" && (l.Username == "" || l.Password == "") {
		return nil
	}
	return l
}
