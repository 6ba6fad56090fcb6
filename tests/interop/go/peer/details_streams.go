//go:build streams

package main

import (
	"google.golang.org/protobuf/types/known/anypb"

	"interop/peer/conformance"
)

// detail is what the details of a status are made of since version 1.2.
type detail = anypb.Any

// client is what the plugin of these versions calls the client interface of a service with streams.
type client = conformance.ConformanceClient

const speaksStreams = true
