// An origin by Go's net/http: answers each request with what it has read of it, in the field `X-Read`.
package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
)

func main() {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	fmt.Printf("listening on %d\n", listener.Addr().(*net.TCPAddr).Port)
	handler := func(response http.ResponseWriter, request *http.Request) {
		content, err := io.ReadAll(request.Body)
		if err != nil {
			response.WriteHeader(http.StatusBadRequest)
			return
		}
		read := fmt.Sprintf("%s %s %x", request.Method, request.RequestURI, content)
		response.Header().Set("X-Read", read)
	}
	panic(http.Serve(listener, http.HandlerFunc(handler)))
}
