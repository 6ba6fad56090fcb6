// Command codegen compiles a .proto file without protoc and hands it to code generator plugins.
//
// A plugin reads a CodeGeneratorRequest from its standard input and answers with the files to write, so any plugin
// works as it does under protoc. The Go package of the generated code is given here and not in the .proto file, because
// that file belongs to every language.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/bufbuild/protocompile"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/pluginpb"
)

type plugins []string

func (p *plugins) String() string     { return strings.Join(*p, ",") }
func (p *plugins) Set(s string) error { *p = append(*p, s); return nil }

func main() {
	log.SetFlags(0)
	log.SetPrefix("codegen: ")
	var run plugins
	source := flag.String("proto", "", "the .proto file to compile")
	out := flag.String("out", "", "directory for the generated files")
	goPackage := flag.String("go-package", "", "import path and name of the generated Go package")
	parameters := flag.String("parameters", "", "comma-separated parameters for the plugins, beyond where to write")
	unaryOnly := flag.Bool("unary-only", false, "leave out streaming methods, which plugins before version 1.2 take for unary ones")
	flag.Var(&run, "plugin", "plugin to run; may be given several times")
	flag.Parse()
	if *source == "" || *out == "" || *goPackage == "" || len(run) == 0 {
		flag.Usage()
		os.Exit(2)
	}
	file, err := compile(*source)
	if err != nil {
		log.Fatalf("compile %s: %v", *source, err)
	}
	if file.Options == nil {
		file.Options = new(descriptorpb.FileOptions)
	}
	file.Options.GoPackage = goPackage
	if *unaryOnly {
		dropStreamingMethods(file)
	}
	for _, plugin := range run {
		if err := generate(plugin, file, *parameters, *out); err != nil {
			log.Fatalf("%s: %v", plugin, err)
		}
	}
}

func compile(source string) (*descriptorpb.FileDescriptorProto, error) {
	compiler := protocompile.Compiler{
		Resolver: &protocompile.SourceResolver{ImportPaths: []string{filepath.Dir(source)}},
		// Comments of the .proto file appear in the generated code only if the descriptor keeps where they stood.
		SourceInfoMode: protocompile.SourceInfoStandard,
	}
	files, err := compiler.Compile(context.Background(), filepath.Base(source))
	if err != nil {
		return nil, err
	}
	return protodesc.ToFileDescriptorProto(files[0]), nil
}

// dropStreamingMethods derives the unary view of a file. The position of each later element changes with it, and a
// comment that sits at the wrong element is worse than none, so the positions go too.
func dropStreamingMethods(file *descriptorpb.FileDescriptorProto) {
	for _, service := range file.Service {
		var unary []*descriptorpb.MethodDescriptorProto
		for _, method := range service.Method {
			if !method.GetClientStreaming() && !method.GetServerStreaming() {
				unary = append(unary, method)
			}
		}
		service.Method = unary
	}
	file.SourceCodeInfo = nil
}

func generate(plugin string, file *descriptorpb.FileDescriptorProto, parameters, out string) error {
	request, err := proto.Marshal(&pluginpb.CodeGeneratorRequest{
		FileToGenerate: []string{file.GetName()},
		Parameter:      proto.String(strings.Trim("paths=source_relative,"+parameters, ",")),
		ProtoFile:      []*descriptorpb.FileDescriptorProto{file},
		// Plugins adapt their output to old compilers; this one is none.
		CompilerVersion: &pluginpb.Version{Major: proto.Int32(3), Minor: proto.Int32(21), Patch: proto.Int32(12)},
	})
	if err != nil {
		return err
	}
	command := exec.Command(plugin)
	command.Stdin = bytes.NewReader(request)
	command.Stderr = os.Stderr
	answer, err := command.Output()
	if err != nil {
		return err
	}
	var response pluginpb.CodeGeneratorResponse
	if err := proto.Unmarshal(answer, &response); err != nil {
		return fmt.Errorf("its answer is malformed: %w", err)
	}
	if response.Error != nil {
		return errors.New(response.GetError())
	}
	for _, generated := range response.File {
		path := filepath.Join(out, filepath.FromSlash(generated.GetName()))
		if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(generated.GetContent()), 0o666); err != nil {
			return err
		}
	}
	return nil
}
