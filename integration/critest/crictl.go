package critest

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// WriteConfig writes a configuration for crictl into a directory, and answers its path.
func WriteConfig(dir, name string, content map[string]any) (string, error) {
	data, err := json.Marshal(content)
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, name+".json")
	return path, os.WriteFile(path, data, 0o600)
}

// WaitingMove answers the operation of a move that waits until its pod is made where it goes. An error: none does.
func (g *Ground) WaitingMove(ctx context.Context) (operation string, err error) {
	out, err := g.RunGodwit(ctx, "-n", "k8s.io", "migrations", "-o", "json")
	if err != nil {
		return "", err
	}
	var all struct {
		Moves []struct {
			Operation struct{ ID string }
			Waiting   string
		}
	}
	if err := json.Unmarshal([]byte(out), &all); err != nil {
		return "", fmt.Errorf("moves: %w: %s", err, out)
	}
	for _, m := range all.Moves {
		if strings.Contains(m.Waiting, "waits on node") {
			return m.Operation.ID, nil
		}
	}
	return "", fmt.Errorf("no move waits for its pod: %s", out)
}
