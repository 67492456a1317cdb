// A floor for benchmarks: the least that an admission webhook in Go does. It decodes the review and the pod with
// encoding/json, reads the annotations, and answers a constant patch over TLS. go run floor.go PORT CERTIFICATE KEY
package main

import (
	"encoding/json"
	"log"
	"net/http"
	"os"
)

type pod struct {
	Metadata struct {
		Name        string            `json:"name"`
		Namespace   string            `json:"namespace"`
		Annotations map[string]string `json:"annotations"`
	} `json:"metadata"`
	Spec struct {
		Containers []struct {
			Name  string `json:"name"`
			Image string `json:"image"`
			Env   []struct {
				Name  string `json:"name"`
				Value string `json:"value"`
			} `json:"env"`
			Resources struct {
				Requests map[string]string `json:"requests"`
				Limits   map[string]string `json:"limits"`
			} `json:"resources"`
		} `json:"containers"`
	} `json:"spec"`
}

type request struct {
	UID       string          `json:"uid"`
	Operation string          `json:"operation"`
	Namespace string          `json:"namespace"`
	Object    json.RawMessage `json:"object"`
}

type response struct {
	UID       string `json:"uid"`
	Allowed   bool   `json:"allowed"`
	Patch     []byte `json:"patch"`
	PatchType string `json:"patchType"`
}

type review struct {
	APIVersion string    `json:"apiVersion"`
	Kind       string    `json:"kind"`
	Request    *request  `json:"request,omitempty"`
	Response   *response `json:"response,omitempty"`
}

var patch = []byte(`[{"op":"add","path":"/metadata/annotations/floor","value":"seen"}]`)

func mutate(answer http.ResponseWriter, asked *http.Request) {
	var found review
	var created pod
	err := json.NewDecoder(asked.Body).Decode(&found)
	if err == nil && found.Request != nil {
		err = json.Unmarshal(found.Request.Object, &created)
	}
	if err != nil || found.Request == nil || created.Metadata.Annotations == nil {
		http.Error(answer, "not a review of a pod with annotations", http.StatusBadRequest)
		return
	}
	found.Response = &response{UID: found.Request.UID, Allowed: true, Patch: patch, PatchType: "JSONPatch"}
	found.Request = nil
	answer.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(answer).Encode(found); err != nil {
		log.Print(err)
	}
}

func main() {
	http.HandleFunc("POST /mutate", mutate)
	log.Fatal(http.ListenAndServeTLS("127.0.0.1:"+os.Args[1], os.Args[2], os.Args[3], nil))
}
