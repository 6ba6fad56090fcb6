//go:build streams

package main

import (
	"context"
	"errors"
	"io"
	"time"

	"interop/peer/conformance"
)

func (s *service) Collect(ctx context.Context, stream conformance.Conformance_CollectServer) (*conformance.CollectResponse, error) {
	defer s.begin(ctx)()
	return collect(stream)
}

func (s *service) Hold(ctx context.Context, stream conformance.Conformance_HoldServer) (*conformance.CollectResponse, error) {
	defer s.begin(ctx)()
	if err := s.waitFor(ctx, "hold"); err != nil {
		return nil, err
	}
	return collect(stream)
}

func collect(stream interface {
	Recv() (*conformance.Chunk, error)
}) (*conformance.CollectResponse, error) {
	response := &conformance.CollectResponse{InOrder: true}
	for {
		chunk, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return response, nil
		}
		if err != nil {
			return nil, err
		}
		if chunk.Sequence != response.Chunks {
			response.InOrder = false
		}
		response.Chunks++
		response.Bytes += uint64(len(chunk.Payload))
	}
}

func (s *service) Generate(ctx context.Context, request *conformance.GenerateRequest, stream conformance.Conformance_GenerateServer) error {
	defer s.begin(ctx)()
	for i := uint64(0); i < request.Count; i++ {
		if i > 0 && request.IntervalMicros > 0 {
			if err := pause(ctx, time.Duration(request.IntervalMicros)*time.Microsecond); err != nil {
				return err
			}
		}
		if err := stream.Send(&conformance.Chunk{Sequence: i, Payload: make([]byte, request.Size)}); err != nil {
			return err
		}
	}
	if request.FailCode != 0 {
		return asAsked(ctx, request.FailCode)
	}
	return nil
}

func (s *service) Exchange(ctx context.Context, stream conformance.Conformance_ExchangeServer) error {
	defer s.begin(ctx)()
	for {
		chunk, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := stream.Send(chunk); err != nil {
			return err
		}
	}
}
