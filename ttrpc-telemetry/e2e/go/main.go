// A ttrpc program with containerd's otelttrpc, as a client or as a server. Spans are written to standard output as
// JSON when it ends; so is what a client was answered, as a line `answer TEXT`.
//
//	telemetry-peer server ADDRESS      prints "listening", serves until standard input ends
//	telemetry-peer client ADDRESS      calls once, with baggage, within a span with a trace state
package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"strings"

	"github.com/containerd/otelttrpc"
	"github.com/containerd/ttrpc"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/baggage"
	"go.opentelemetry.io/otel/exporters/stdout/stdouttrace"
	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

func main() {
	if len(os.Args) != 3 {
		fail(fmt.Errorf("usage: %s server|client ADDRESS", os.Args[0]))
	}
	exporter, err := stdouttrace.New()
	fail(err)
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter))
	otel.SetTracerProvider(provider)
	// What containerd sets.
	otel.SetTextMapPropagator(propagation.NewCompositeTextMapPropagator(
		propagation.TraceContext{}, propagation.Baggage{}))
	if os.Args[1] == "server" {
		serve(os.Args[2])
	} else {
		call(os.Args[2])
	}
	fail(provider.Shutdown(context.Background()))
}

func serve(address string) {
	server, err := ttrpc.NewServer(ttrpc.WithUnaryServerInterceptor(otelttrpc.UnaryServerInterceptor()))
	fail(err)
	server.Register("telemetry.v1.Echo", map[string]ttrpc.Method{
		// Answers with the request and what has come of the caller's context.
		"Say": func(ctx context.Context, unmarshal func(interface{}) error) (interface{}, error) {
			request := &wrapperspb.StringValue{}
			if err := unmarshal(request); err != nil {
				return nil, err
			}
			if request.Value == "refuse" {
				return nil, status.Error(codes.NotFound, "refused as asked")
			}
			state := trace.SpanContextFromContext(ctx).TraceState()
			return wrapperspb.String(fmt.Sprintf("%s; tracestate %s; baggage %s",
				request.Value, state.String(), baggage.FromContext(ctx).Member("tenant").Value())), nil
		},
	})
	listener, err := net.Listen("unix", address)
	fail(err)
	fmt.Println("listening")
	go func() {
		io.Copy(io.Discard, os.Stdin)
		server.Shutdown(context.Background())
	}()
	if err := server.Serve(context.Background(), listener); err != nil && err != ttrpc.ErrServerClosed {
		fail(err)
	}
}

func call(address string) {
	connection, err := net.Dial("unix", address)
	fail(err)
	client := ttrpc.NewClient(connection, ttrpc.WithUnaryClientInterceptor(otelttrpc.UnaryClientInterceptor()))
	defer client.Close()

	// A caller of its own before this one, whose trace state is handed on.
	state, err := trace.ParseTraceState("vendor=value")
	fail(err)
	traceID, _ := trace.TraceIDFromHex("0123456789abcdef0123456789abcdef")
	spanID, _ := trace.SpanIDFromHex("0123456789abcdef")
	ctx := trace.ContextWithRemoteSpanContext(context.Background(), trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: traceID, SpanID: spanID, TraceFlags: trace.FlagsSampled, TraceState: state, Remote: true,
	}))
	tenant, err := baggage.NewMember("tenant", "blue")
	fail(err)
	all, err := baggage.New(tenant)
	fail(err)
	ctx = baggage.ContextWithBaggage(ctx, all)
	// A value that an earlier hop has left: injecting replaces it.
	ctx = ttrpc.WithMetadata(ctx, ttrpc.MD{"traceparent": {"stale"}})

	for _, text := range []string{"hello", "refuse"} {
		reply := &wrapperspb.StringValue{}
		err = client.Call(ctx, "telemetry.v1.Echo", "Say", wrapperspb.String(text), reply)
		answer := reply.Value
		if err != nil {
			answer = status.Convert(err).Code().String() + " " + status.Convert(err).Message()
		}
		fmt.Println("answer", strings.TrimSpace(answer))
	}
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
