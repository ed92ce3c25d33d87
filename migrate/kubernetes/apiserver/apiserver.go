// Package apiserver finds the way to the API server for the programs of this module.
package apiserver

import (
	"fmt"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// Config is the API server of a kubeconfig; of an empty one, that of the pod.
func Config(kubeconfig string) (*rest.Config, error) {
	if kubeconfig == "" {
		api, err := rest.InClusterConfig()
		if err != nil {
			return nil, fmt.Errorf("way to the API server: %w. Outside a pod of Kubernetes, name the file of the way there: "+
				"--kubeconfig FILE", err)
		}
		return api, nil
	}
	api, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("way to the API server: --kubeconfig: %w", err)
	}
	return api, nil
}
