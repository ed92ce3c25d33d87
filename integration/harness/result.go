package harness

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
)

// WriteResult stores a result as JSON so that no reader sees half of it.
func WriteResult(path string, result any) error {
	data, err := json.MarshalIndent(result, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(path+".new", append(data, '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// WriteKeys is WriteResult with these values by their names at the top level too.
func WriteKeys(path string, result any, keys map[string]any) error {
	data, err := json.Marshal(result)
	if err != nil {
		return err
	}
	all := map[string]any{}
	if err := json.Unmarshal(data, &all); err != nil {
		return err
	}
	maps.Copy(all, keys)
	return WriteResult(path, all)
}
