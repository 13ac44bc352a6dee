// A null sink that speaks just enough S3: PUT reads and forgets the body, HEAD tells what was claimed of it.
// Prints its port. The fastest server we could have, so that the client is what a bench measures.
package main

import (
	"fmt"
	"net"
	"net/http"
	"strconv"
	"sync"
)

type object struct {
	bytes int64
	crc   string
}

func main() {
	var objects sync.Map
	buffers := sync.Pool{New: func() any { b := make([]byte, 1<<20); return &b }}
	handle := func(w http.ResponseWriter, r *http.Request) {
		switch r.Method {
		case http.MethodPut:
			buffer := buffers.Get().(*[]byte)
			defer buffers.Put(buffer)
			var bytes int64
			for {
				n, err := r.Body.Read(*buffer)
				bytes += int64(n)
				if err != nil {
					break
				}
			}
			if bytes != r.ContentLength {
				return
			}
			made := object{bytes, r.Header.Get("x-amz-checksum-crc32c")}
			if r.Header.Get("If-None-Match") == "*" {
				if _, taken := objects.LoadOrStore(r.URL.Path, made); taken {
					w.WriteHeader(http.StatusPreconditionFailed)
					return
				}
			} else {
				objects.Store(r.URL.Path, made)
			}
			w.Header().Set("ETag", `"0123456789abcdef0123456789abcdef"`)
		case http.MethodHead:
			found, ok := objects.Load(r.URL.Path)
			if !ok {
				w.WriteHeader(http.StatusNotFound)
				return
			}
			made := found.(object)
			w.Header().Set("Content-Length", strconv.FormatInt(made.bytes, 10))
			w.Header().Set("ETag", `"0123456789abcdef0123456789abcdef"`)
			if made.crc != "" {
				w.Header().Set("x-amz-checksum-crc32c", made.crc)
				w.Header().Set("x-amz-checksum-type", "FULL_OBJECT")
			}
		default:
			w.WriteHeader(http.StatusNotImplemented)
		}
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	fmt.Println(listener.Addr().(*net.TCPAddr).Port)
	panic(http.Serve(listener, http.HandlerFunc(handle)))
}
