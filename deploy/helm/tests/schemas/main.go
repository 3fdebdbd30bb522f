// Makes JSON schemas of the kinds of Kubernetes for kubeconform.
//
// In: pairs of a folder to write and a source: the swagger.json of a version of Kubernetes, or the YAML file of a
// CustomResourceDefinition. Out: FOLDER/GROUP/KIND_VERSION.json for each kind, in which unknown keys are errors.
package main

import (
	"encoding/json"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strings"

	"sigs.k8s.io/yaml"
)

type object = map[string]any

// Prefix of references within swagger.json, and within what is written.
const prefix = "#/definitions/"

func main() {
	log.SetFlags(0)
	if len(os.Args) < 3 || len(os.Args)%2 != 1 {
		log.Fatal("usage: schemas FOLDER SOURCE [FOLDER SOURCE]…")
	}
	for i := 1; i < len(os.Args); i += 2 {
		folder, source := os.Args[i], os.Args[i+1]
		text, err := os.ReadFile(source)
		if err != nil {
			log.Fatal(err)
		}
		if strings.HasSuffix(source, ".json") {
			err = fromSwagger(folder, text)
		} else {
			err = fromDefinition(folder, text)
		}
		if err != nil {
			log.Fatalf("%s: %v", source, err)
		}
	}
}

// fromSwagger writes a schema for each kind that has a group, a version and a name.
func fromSwagger(folder string, text []byte) error {
	var swagger struct {
		Definitions map[string]object `json:"definitions"`
	}
	if err := json.Unmarshal(text, &swagger); err != nil {
		return err
	}
	definitions := swagger.Definitions
	for name, definition := range definitions {
		refuseUnknown(definition)
		switch {
		case strings.HasSuffix(name, ".IntOrString"):
			definitions[name] = object{"type": []any{"string", "integer"}}
		case strings.HasSuffix(name, ".Quantity"):
			definitions[name] = object{"type": []any{"string", "number"}}
		}
	}
	for name, definition := range definitions {
		kinds, _ := definition["x-kubernetes-group-version-kind"].([]any)
		for _, kind := range kinds {
			kind := kind.(object)
			reached := object{}
			reach(definitions, name, reached)
			schema := object{"$ref": prefix + name, "definitions": reached}
			if err := write(folder, kind["group"].(string), kind["kind"].(string), kind["version"].(string), schema); err != nil {
				return err
			}
		}
	}
	return nil
}

// reach adds a definition, and all that it refers to.
func reach(definitions map[string]object, name string, reached object) {
	if _, known := reached[name]; known {
		return
	}
	reached[name] = definitions[name]
	each(definitions[name], func(schema object) {
		if target, is := schema["$ref"].(string); is {
			reach(definitions, strings.TrimPrefix(target, prefix), reached)
		}
	})
}

// fromDefinition writes a schema for each version of a CustomResourceDefinition.
func fromDefinition(folder string, text []byte) error {
	for _, document := range strings.Split(string(text), "\n---\n") {
		var definition struct {
			Kind string `json:"kind"`
			Spec struct {
				Group string `json:"group"`
				Names struct {
					Kind string `json:"kind"`
				} `json:"names"`
				Versions []struct {
					Name   string `json:"name"`
					Schema struct {
						OpenAPIV3Schema object `json:"openAPIV3Schema"`
					} `json:"schema"`
				} `json:"versions"`
			} `json:"spec"`
		}
		if err := yaml.Unmarshal([]byte(document), &definition); err != nil {
			return err
		}
		if definition.Kind != "CustomResourceDefinition" {
			continue
		}
		spec := definition.Spec
		for _, version := range spec.Versions {
			schema := version.Schema.OpenAPIV3Schema
			refuseUnknown(schema)
			if err := write(folder, spec.Group, spec.Names.Kind, version.Name, schema); err != nil {
				return err
			}
		}
	}
	return nil
}

// refuseUnknown makes unknown keys an error wherever a schema names the known ones.
func refuseUnknown(schema object) {
	each(schema, func(schema object) {
		_, hasKeys := schema["properties"].(object)
		_, isOpen := schema["additionalProperties"]
		if hasKeys && !isOpen && schema["x-kubernetes-preserve-unknown-fields"] != true {
			schema["additionalProperties"] = false
		}
		if schema["x-kubernetes-int-or-string"] == true {
			delete(schema, "anyOf")
			schema["type"] = []any{"string", "integer"}
		}
	})
}

// each calls visit with a schema and all schemas within it.
func each(schema object, visit func(object)) {
	visit(schema)
	for key, value := range schema {
		switch value := value.(type) {
		case object:
			if key == "properties" {
				// Its keys are names of properties, not words of a schema.
				for _, property := range value {
					each(property.(object), visit)
				}
			} else {
				each(value, visit)
			}
		case []any:
			for _, item := range value {
				if item, is := item.(object); is {
					each(item, visit)
				}
			}
		}
	}
}

func write(folder, group, kind, version string, schema object) error {
	if group == "" {
		// kubeconform has the version as the group of what is not in a group.
		group = version
	}
	path := filepath.Join(folder, group, strings.ToLower(fmt.Sprintf("%s_%s.json", kind, version)))
	text, err := json.Marshal(schema)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, text, 0o644)
}
