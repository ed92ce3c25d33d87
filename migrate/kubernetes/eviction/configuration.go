package eviction

import (
	admissionregistration "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// ConfigurationName is that of the object by which the API server knows the webhook.
	ConfigurationName = "godwit-evictions"
	// ServiceName is where the API server finds the webhook of a Deployment.
	ServiceName = "godwit-webhook"
)

// Configuration has the API server ask the webhook before each eviction. If the webhook does not answer, the eviction
// goes on: else a dead operator would stop all evictions of a cluster. What slips through meets the budget.
func Configuration(at admissionregistration.WebhookClientConfig) *admissionregistration.ValidatingWebhookConfiguration {
	ignore, effects := admissionregistration.Ignore, admissionregistration.SideEffectClassNoneOnDryRun
	seconds := int32(5)
	return &admissionregistration.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: ConfigurationName},
		Webhooks: []admissionregistration.ValidatingWebhook{{
			Name: "evictions.godwit.dev", ClientConfig: at, FailurePolicy: &ignore, SideEffects: &effects,
			TimeoutSeconds: &seconds, AdmissionReviewVersions: []string{"v1"},
			Rules: []admissionregistration.RuleWithOperations{{
				Operations: []admissionregistration.OperationType{admissionregistration.Create},
				Rule: admissionregistration.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"},
					Resources: []string{"pods/eviction"}},
			}},
		}}}
}
