package controller

import (
	"fmt"
	"regexp"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/reflect/protoreflect"

	"godwit.dev/godwit/internal/visible"
)

// Patterns of the names that become keys, paths, tags and text of terminals, wherever a call has one. A digest is
// one of the OCI image spec, or of a stream. Builds before have made no others: so a name of the store is never
// refused here. The names of VMs are looked at with the record (transition.CheckNamed), since builds before took
// any.
var (
	nodePattern      = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9])?$`)
	operationPattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$`)
	digestPattern    = regexp.MustCompile(`^[a-z0-9]+([+._-][a-z0-9]+)*:[A-Za-z0-9=_-]{1,128}$`)
	spacePattern     = regexp.MustCompile(`^[A-Za-z0-9]+([._-][A-Za-z0-9]+)*$`)
)

// patterns are by field, wherever it is; those of full names go first.
var patterns = map[protoreflect.Name]*regexp.Regexp{
	"node": nodePattern, "source": nodePattern, "destination": nodePattern, "retarget": nodePattern,
	"lost_node": nodePattern, "wish": nodePattern,
	"place": operationPattern, "source_place": operationPattern,
	"home": nodePattern, "driver": nodePattern, "payer": nodePattern, "by": nodePattern, "on": nodePattern,
	"retire":    nodePattern,
	"operation": operationPattern, "deletion": operationPattern,
	"digest": digestPattern, "force_digest": digestPattern, "spent": digestPattern,
}

var fullPatterns = map[protoreflect.FullName]*regexp.Regexp{
	"godwit.node.v1.MigrateRequest.to": nodePattern, "godwit.node.v1.RecoverRequest.to": nodePattern,
	"godwit.node.v1.DrainRequest.to": nodePattern,
	"godwit.node.v1.NodeInfo.name":   nodePattern, "godwit.node.v1.PeerReleaseRequest.owner": nodePattern,
	"godwit.node.v1.OperationRequest.id": operationPattern, "godwit.node.v1.Operation.id": operationPattern,
	"godwit.node.v1.Deletion.id":      operationPattern,
	"godwit.node.v1.Pod.uid":          operationPattern,
	"godwit.node.v1.DiffRequest.from": digestPattern, "godwit.node.v1.DiffRequest.to": digestPattern,
	"godwit.node.v1.GoldenRequest.namespace": spacePattern,
}

// required are the fields without which a call says nothing. VMs are looked at by the services.
var required = map[protoreflect.FullName][]protoreflect.Name{
	"godwit.node.v1.OwnRequest": {"node"}, "godwit.node.v1.DisownRequest": {"node"},
	"godwit.node.v1.RetireRequest": {"node"},
	"godwit.node.v1.ReportRequest": {"node"}, "godwit.node.v1.CordonRequest": {"node"},
	"godwit.node.v1.DrainRequest":     {"node"},
	"godwit.node.v1.OperationRequest": {"id"}, "godwit.node.v1.StatusRequest": {"operation"},
	"godwit.node.v1.AbortRequest":   {"operation"},
	"godwit.node.v1.AdvanceRequest": {"operation"}, "godwit.node.v1.CommitRequest": {"operation"},
	"godwit.node.v1.FinishRequest": {"operation"}, "godwit.node.v1.PlaceRequest": {"operation", "node", "place"},
	"godwit.node.v1.RetryRequest": {"operation"}, "godwit.node.v1.ReclaimRequest": {"operation"},
	"godwit.node.v1.ClearRequest": {"digest"}, "godwit.node.v1.DropRequest": {"digest"},
	"godwit.node.v1.InspectRequest": {"digest"}, "godwit.node.v1.LoginRequest": {"repository"},
	"godwit.node.v1.VerifyRequest": {"digest"}, "godwit.node.v1.CopyRequest": {"digest", "to"},
	"godwit.node.v1.DiffRequest":   {"from", "to"},
	"godwit.node.v1.GoldenRequest": {"image"}, "godwit.node.v1.GoldenDropRequest": {"what"},
	"godwit.node.v1.TemplateRemoveRequest": {"what"}, "godwit.node.v1.TemplatePushRequest": {"what", "to"},
}

// complete refuses a call without what it is about.
func complete(m protoreflect.Message) error {
	for _, field := range required[m.Descriptor().FullName()] {
		if !m.Has(m.Descriptor().Fields().ByName(field)) {
			return fmt.Errorf("%s: it is empty, and needed: %w", field, errdefs.ErrInvalidArgument)
		}
	}
	return nil
}

// fitsPattern refuses a name that its field does not take; what may be empty is the call's to say.
func fitsPattern(f protoreflect.FieldDescriptor, s, at string) error {
	pattern := fullPatterns[f.FullName()]
	if pattern == nil {
		pattern = patterns[f.Name()]
	}
	if pattern == nil || s == "" || pattern.MatchString(s) {
		return nil
	}
	return fmt.Errorf("%s: %q must match %s: %w", at, visible.Cut(s, 100), pattern, errdefs.ErrInvalidArgument)
}
