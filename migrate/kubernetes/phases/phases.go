// Package phases says what the API calls what the records have.
package phases

import (
	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Records are the phases of an operation in the record. One that a newer build has is none.
var Records = map[nodev1.Phase]v1alpha1.RecordPhase{
	nodev1.Phase_PHASE_PENDING:      v1alpha1.RecordPending,
	nodev1.Phase_PHASE_PREPARING:    v1alpha1.RecordPreparing,
	nodev1.Phase_PHASE_TRANSFERRING: v1alpha1.RecordTransferring,
	nodev1.Phase_PHASE_SWITCHING:    v1alpha1.RecordSwitching,
	nodev1.Phase_PHASE_COMMITTED:    v1alpha1.RecordCommitted,
	nodev1.Phase_PHASE_CLEANING:     v1alpha1.RecordCleaning,
	nodev1.Phase_PHASE_SUCCEEDED:    v1alpha1.RecordSucceeded,
	nodev1.Phase_PHASE_ABORTING:     v1alpha1.RecordAborting,
	nodev1.Phase_PHASE_REVERTING:    v1alpha1.RecordReverting,
	nodev1.Phase_PHASE_FAILED:       v1alpha1.RecordFailed,
	nodev1.Phase_PHASE_ABORTED:      v1alpha1.RecordAborted,
	nodev1.Phase_PHASE_LOST_AT_DEST: v1alpha1.RecordLostAtDest,
	nodev1.Phase_PHASE_LOST_AT_SRC:  v1alpha1.RecordLostAtSrc,
}

// Kinds are the kinds of operations.
var Kinds = map[nodev1.Kind]v1alpha1.OperationKind{
	nodev1.Kind_KIND_HIBERNATE:  v1alpha1.KindHibernate,
	nodev1.Kind_KIND_WAKE:       v1alpha1.KindWake,
	nodev1.Kind_KIND_MIGRATE:    v1alpha1.KindMigrate,
	nodev1.Kind_KIND_CHECKPOINT: v1alpha1.KindCheckpoint,
}
