package eviction

const (
	// ConfigurationName is that of the object by which the API server knows the webhook.
	ConfigurationName = "godwit-evictions"
	// ServiceName is where the API server finds the webhook of a Deployment.
	ServiceName = "godwit-webhook"
)
