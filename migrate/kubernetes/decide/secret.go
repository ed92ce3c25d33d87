package decide

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/pods"
	"godwit.dev/godwit/snapshot/seal"
	"godwit.dev/godwit/snapshot/sign"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// The types of Secrets with keys, and what they have. A Secret of another type is never sent to a node.
const (
	TypeSealKeys corev1.SecretType = "godwit.dev/seal-keys"
	TypeSignKey  corev1.SecretType = "godwit.dev/sign-key"
	DataKeys                       = "keys"        // 32 bytes in base64, a line each: the first seals, each opens
	DataKey                        = "key.pem"     // PKCS #8
	DataTrusted                    = "trusted.pem" // public keys of before
)

// Secret is one that a class names.
type Secret struct {
	Field  string
	Ref    v1alpha1.SecretRef
	remedy string
	// read adds what the Secret has to an answer; why is what is wrong with it. It quotes nothing of the Secret.
	read func(secret *corev1.Secret, repository string, to *nodev1.LoginResponse) (why string)
}

// The commands that make Secrets, without names.
const (
	makeLogin = "kubectl create secret docker-registry"
	makeSeal  = "kubectl create secret generic --type=" + string(TypeSealKeys) + " --from-file=" + DataKeys + "=FILE"
	makeSign  = "kubectl create secret generic --type=" + string(TypeSignKey) + " --from-file=" + DataKey + "=FILE"
)

// Keys say with which keys snapshots are made or read.
type Keys struct{ Seal, Sign bool }

// AllKeys are those of whatever a class has.
var AllKeys = Keys{Seal: true, Sign: true}

// KeysOf are those that a class has.
func KeysOf(c *v1alpha1.VMSnapshotClass) Keys {
	if c == nil {
		return Keys{}
	}
	return Keys{c.Spec.SealSecretRef != nil, c.Spec.SignSecretRef != nil}
}

// With are these keys, and others.
func (k Keys) With(others Keys) Keys { return Keys{k.Seal || others.Seal, k.Sign || others.Sign} }

// SecretsOf are those that a class names: that of the login, and those of the keys that are wanted.
func SecretsOf(c *v1alpha1.VMSnapshotClass, keys Keys) (all []Secret) {
	if ref := c.Spec.PullSecretRef; ref != nil {
		all = append(all, Secret{"pullSecretRef", *ref, makeLogin, readLogin})
	}
	if ref := c.Spec.SealSecretRef; ref != nil && keys.Seal {
		all = append(all, Secret{"sealSecretRef", *ref, makeSeal, readSeal})
	}
	if ref := c.Spec.SignSecretRef; ref != nil && keys.Sign {
		all = append(all, Secret{"signSecretRef", *ref, makeSign, readSign})
	}
	return all
}

func sameSecrets(a, b *v1alpha1.VMSnapshotClass, keys Keys) bool {
	return slices.EqualFunc(SecretsOf(a, keys), SecretsOf(b, keys), func(s, other Secret) bool {
		return s.Field == other.Field && s.Ref == other.Ref
	})
}

// sameKeys reports whether two classes seal and sign alike.
func sameKeys(a, b *v1alpha1.VMSnapshotClass) bool {
	same := func(a, b *v1alpha1.SecretRef) bool { return a == b || a != nil && b != nil && *a == *b }
	return same(a.Spec.SealSecretRef, b.Spec.SealSecretRef) && same(a.Spec.SignSecretRef, b.Spec.SignSecretRef)
}

// NoSecret says why the Secret of a class gives nothing, and what mends it. It quotes nothing of the Secret.
func NoSecret(c *v1alpha1.VMSnapshotClass, s Secret, why string) string {
	return fmt.Sprintf("VMSnapshotClass %s has spec.%s: Secret %s/%s %s", c.Name, s.Field, s.Ref.Namespace, s.Ref.Name,
		why)
}

// Missing is said of a Secret that there is not.
func (s Secret) Missing() string {
	return "does not exist. An administrator makes it: " + s.remedy
}

// SecretForbidden is said of a Secret that may not be read.
const SecretForbidden = "may not be read by godwit-operator. An administrator makes it in the operator's namespace, " +
	"or a Role with get for that one Secret"

// Read adds what a Secret has for a repository to an answer; why is what is wrong with it.
func (s Secret) Read(secret *corev1.Secret, repository string, to *nodev1.LoginResponse) (why string) {
	return s.read(secret, repository, to)
}

func readLogin(secret *corev1.Secret, repository string, to *nodev1.LoginResponse) string {
	login, why := LoginOf(secret, repository)
	if why == "" {
		to.Username, to.Password = login.GetUsername(), login.GetPassword()
		to.IdentityToken, to.RegistryToken = login.GetIdentityToken(), login.GetRegistryToken()
	}
	return why
}

func readSeal(secret *corev1.Secret, _ string, to *nodev1.LoginResponse) string {
	if why := otherType(secret, TypeSealKeys, makeSeal); why != "" {
		return why
	}
	keys, err := seal.Parse(string(secret.Data[DataKeys]))
	if err != nil {
		return "has a key " + DataKeys + " that is not 1 to 64 lines with 32 bytes in base64 each: an administrator makes " +
			"it again, by " + makeSeal
	}
	to.SealKeys = keys
	return ""
}

func readSign(secret *corev1.Secret, _ string, to *nodev1.LoginResponse) string {
	if why := otherType(secret, TypeSignKey, makeSign); why != "" {
		return why
	}
	key, trusted, err := sign.Parse(secret.Data[DataKey], secret.Data[DataTrusted])
	if err != nil {
		return "has a key " + DataKey + " that is no private key (PKCS #8 in PEM, ECDSA or Ed25519), or a key " +
			DataTrusted + " with more than public ones: an administrator makes it again, by " + makeSign
	}
	to.SignKey, to.SignTrusted = key, trusted
	return ""
}

func otherType(secret *corev1.Secret, want corev1.SecretType, remedy string) string {
	if secret.Type == want {
		return ""
	}
	return fmt.Sprintf("has type %.60q and not %s: an administrator makes it again, by %s", secret.Type, want, remedy)
}

// NoKeys says why nothing is made or read in a place. Record or work order have it that snapshots there are sealed or
// signed, and the class, if there is one, has no Secret for that. Empty: nothing stands against it.
func NoKeys(wants Keys, prefix string, class *v1alpha1.VMSnapshotClass) string {
	has := KeysOf(class)
	for _, of := range []struct {
		field      string
		needs, has bool
	}{{"sealSecretRef", wants.Seal, has.Seal}, {"signSecretRef", wants.Sign, has.Sign}} {
		if of.needs && !of.has {
			return fmt.Sprintf("its class had spec.%s, and no VMSnapshotClass with spec.repository %s, and that field, is "+
				"open to its namespace: an administrator makes it again", of.field, prefix)
		}
	}
	return ""
}

// KeysOfRecord are those of a place by the record: it has a word of its own prefix alone.
func KeysOfRecord(rec *nodev1.Record, prefix string) (keys Keys, own bool) {
	if prefix == "" || rec.GetPrefix() != prefix {
		return Keys{}, false
	}
	return Keys{rec.GetSealed(), rec.GetSigned()}, true
}

// KeysOfOrder are those of a work order; false: it is none of that operation of the VM with that uid.
func KeysOfOrder(c *v1alpha1.VMSnapshotContent, operation, uid string) (Keys, bool) {
	if c == nil || c.Spec.SnapshotRef.UID != operation || uid == "" || c.Labels[pods.LabelRecordUID] != uid {
		return Keys{}, false
	}
	return Keys{c.Spec.Sealed, c.Spec.Signed}, true
}

// OrderedIn are the operations that have made snapshots in a repository, by what is in a record or was left by one.
func OrderedIn(repository string, rec *nodev1.Record, owed []*nodev1.Owed) (operations []string) {
	add := func(ref *nodev1.SnapshotRef) {
		if ref.GetGiven() && ref.GetRepository() == repository && ref.GetOperation() != "" &&
			!slices.Contains(operations, ref.GetOperation()) {
			operations = append(operations, ref.GetOperation())
		}
	}
	for _, ref := range rec.GetSnapshots() {
		add(ref)
	}
	for _, o := range owed {
		if o.GetHold() != nil {
			add(o.GetSnapshot())
		}
	}
	return operations
}
