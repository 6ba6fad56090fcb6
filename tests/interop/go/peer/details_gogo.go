//go:build gogo

package main

import (
	"github.com/golang/protobuf/ptypes/any"

	"interop/peer/conformance"
)

// detail is what the details of a status are made of in the versions with gogo/protobuf.
type detail = any.Any

// client is what the plugin of these versions calls the client interface.
type client = conformance.ConformanceService

const speaksStreams = false
