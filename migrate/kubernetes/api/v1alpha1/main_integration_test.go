//go:build integration

package v1alpha1_test

import (
	"os"
	"testing"

	"godwit.dev/godwit/migrate/kubernetes/apitest"
)

var server *apitest.Server

func TestMain(m *testing.M) { os.Exit(apitest.Main(m, func(s *apitest.Server) { server = s })) }
