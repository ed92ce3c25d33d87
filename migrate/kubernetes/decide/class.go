package decide

import (
	"cmp"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// AnnotationDefault of a VMSnapshotClass, as "true", makes it that of VMs which name none.
const AnnotationDefault = "godwit.dev/is-default-class"

// The reasons for which a class cannot be used yet.
const (
	ReasonClassNotFound    Reason = "ClassNotFound"
	ReasonClassNotAllowed  Reason = "ClassNotAllowed"
	ReasonClassUnsupported Reason = "ClassUnsupported"
	// ReasonClassSecret is of one that names Secrets, where one of them does not give what it is for.
	ReasonClassSecret Reason = "ClassSecretUnusable"
)

// OfClass reports whether a reason is one for which a class cannot be used. People are told it by an event.
func OfClass(why Reason) bool {
	switch why {
	case ReasonClassNotFound, ReasonClassNotAllowed, ReasonClassUnsupported, ReasonClassSecret:
		return true
	}
	return false
}

// Class is what was observed of the class of snapshots that an object has.
type Class struct {
	Field     string // of the object that names it
	Name      string // that it has; empty: the class is the default one
	Object    *v1alpha1.VMSnapshotClass
	Namespace *corev1.Namespace // of the object that has it; nil: it is gone
	NoSecret  string            // why a Secret of the class gives nothing (NoSecret); empty: each does, or there is none
	All       []v1alpha1.VMSnapshotClass
}

// Default is the class of objects of a namespace that name none; nil: there is none. Of several the newest counts, as
// of storage classes.
func Default(all []v1alpha1.VMSnapshotClass, namespace *corev1.Namespace) (is *v1alpha1.VMSnapshotClass) {
	for i := range all {
		c := &all[i]
		if c.Annotations[AnnotationDefault] != "true" || !allows(c, namespace) {
			continue
		}
		if is == nil || newer(c, is) {
			is = c
		}
	}
	return is
}

func newer(a, b *v1alpha1.VMSnapshotClass) bool {
	if c := a.CreationTimestamp.Compare(b.CreationTimestamp.Time); c != 0 {
		return c > 0
	}
	return strings.Compare(a.Name, b.Name) < 0
}

// allows reports whether objects of a namespace may use a class. One that says nothing allows none.
func allows(c *v1alpha1.VMSnapshotClass, namespace *corev1.Namespace) bool {
	if c.Spec.AllowedNamespaces == nil || namespace == nil {
		return false
	}
	selector, err := metav1.LabelSelectorAsSelector(c.Spec.AllowedNamespaces)
	return err == nil && selector.Matches(labels.Set(namespace.Labels))
}

// Waits says why the class cannot be used yet, and who mends it by what. Nothing has failed then.
func (c Class) Waits() Action {
	class := c.Object
	switch {
	case class == nil && c.Name == "":
		return Action{Do: None}
	case class == nil:
		return c.wait(ReasonClassNotFound, fmt.Sprintf("%s: there is no VMSnapshotClass %s. An administrator may make it; "+
			"kubectl get vmsnapclass has those that there are", c.Field, c.Name))
	case !allows(class, c.Namespace):
		return c.wait(ReasonClassNotAllowed, fmt.Sprintf("%s: VMSnapshotClass %s does not allow this namespace. An "+
			"administrator may change its spec.allowedNamespaces, or the labels of the namespace", c.Field, class.Name))
	}
	if field := unsupported(class.Spec); field != "" {
		return c.wait(ReasonClassUnsupported, fmt.Sprintf("%s: VMSnapshotClass %s has spec.%s: an administrator leaves it "+
			"away", c.Field, class.Name, field))
	}
	if record.CheckPrefix(class.Spec.Repository) != nil { // the schema of a build before took it
		return c.wait(ReasonClassUnsupported, fmt.Sprintf("%s: VMSnapshotClass %s has spec.repository %.80q, which is no "+
			"HOST[:PORT]/PATH of a registry: an administrator makes another class", c.Field, class.Name,
			class.Spec.Repository))
	}
	if other := c.rival(); other != nil {
		return c.wait(ReasonClassUnsupported, fmt.Sprintf("%s: VMSnapshotClasses %s and %s have one spec.repository, and "+
			"spec.sealSecretRef or spec.signSecretRef are not the same: an administrator makes one of them with another "+
			"repository", c.Field, class.Name, other.Name))
	}
	if c.NoSecret != "" {
		return c.wait(ReasonClassSecret, c.Field+": "+c.NoSecret)
	}
	return Action{Do: None}
}

// rival is another class with the same repository that seals or signs otherwise; nil: there is none.
func (c Class) rival() *v1alpha1.VMSnapshotClass {
	for i := range c.All {
		other := &c.All[i]
		if other.Name != c.Object.Name && other.Spec.Repository == c.Object.Spec.Repository && !sameKeys(other, c.Object) {
			return other
		}
	}
	return nil
}

// orders says why the class gives no snapshot of a VM a place: the record has another word of that one.
func (c Class) orders(rec *nodev1.Record) Action {
	if c.Object == nil {
		return Action{Do: None}
	}
	if has, own := KeysOfRecord(rec, c.Object.Spec.Repository); own && has != KeysOf(c.Object) {
		return c.wait(ReasonClassUnsupported, fmt.Sprintf("%s: VMSnapshotClass %s has the repository of the VM, whose "+
			"snapshots there are sealed and signed otherwise: an administrator makes a class with another repository",
			c.Field, c.Object.Name))
	}
	return Action{Do: None}
}

// unsupported is what a class has that nothing honours.
func unsupported(spec v1alpha1.VMSnapshotClassSpec) string {
	if spec.MinGraceSeconds != nil && graceOf(spec) == 0 { // the schema has the same bounds
		return fmt.Sprintf("minGraceSeconds %d, which is not %d to %d", *spec.MinGraceSeconds, leastGrace, mostGrace)
	}
	return ""
}

// The bounds of minGraceSeconds.
const (
	leastGrace = 30
	mostGrace  = 86400
)

func graceOf(spec v1alpha1.VMSnapshotClassSpec) int64 {
	if s := spec.MinGraceSeconds; s != nil && leastGrace <= *s && *s <= mostGrace {
		return int64(*s)
	}
	return 0
}

// Grace is what pods of a VM whose snapshots go below a prefix have at least, in seconds; 0: no class says it. Where
// classes allow its namespace, others have no say.
func Grace(all []v1alpha1.VMSnapshotClass, prefix string, namespace *corev1.Namespace) int64 {
	allowed, some := int64(0), int64(0)
	for i := range all {
		c := &all[i]
		if prefix == "" || c.Spec.Repository != prefix {
			continue
		}
		some = max(some, graceOf(c.Spec))
		if allows(c, namespace) {
			allowed = max(allowed, graceOf(c.Spec))
		}
	}
	return cmp.Or(allowed, some)
}

// wait looks again by itself: a class concerns objects that it does not know.
func (c Class) wait(why Reason, message string) Action {
	next := wait(why, message)
	next.After = lookAgain
	return next
}

// Keep is how many snapshots of a VM of this class stay; 0: as its nodes are configured.
func Keep(c *v1alpha1.VMSnapshotClass) uint32 {
	if c == nil || c.Spec.Retention.Keep == nil {
		return 0
	}
	return uint32(max(0, *c.Spec.Retention.Keep))
}
