//! Whatever names files have, they are refused if, and only if, what would be generated from them has
//! two things of one name where Rust allows one.

use std::{
    collections::{HashMap, HashSet},
    fs,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
};

use proptest::{collection::vec, prelude::*, sample::select};
use syn::{Fields, ImplItem, Item, ItemStruct, Type};
use ttrpc_codegen::ServiceGenerator;

/// Few, so that they often clash.
const NAMES: [&str; 31] = [
    "a",
    "A",
    "_a",
    "a_",
    "aB",
    "a_b",
    "AB",
    "Ab",
    "a1",
    "a_1",
    "_1",
    "__1",
    "self",
    "_self",
    "Self",
    "type",
    "Type",
    "set_a",
    "push_a",
    "get_a",
    "insert_a",
    "get_type",
    "a_one_of",
    "AOneOf",
    "E_a",
    "e",
    "AServer",
    "AClient",
    "ABlocking",
    "ABlockingServer",
    "_",
];

fn name() -> impl Strategy<Value = &'static str> {
    select(&NAMES[..])
}

fn field_type() -> impl Strategy<Value = &'static str> {
    let types = ["optional int32", "required bytes", "repeated string", "optional .p.Tree.E"];
    let more = ["required .p.Tree.E", "repeated .p.Tree.E", "map<string, .p.Tree.E>"];
    select([&types[..], &more[..], &["optional .p.Tree"]].concat())
}

/// The inside of an enum.
fn values() -> impl Strategy<Value = String> {
    vec(name(), 1..3).prop_map(|names| {
        let values = names.iter().enumerate();
        values.map(|(number, name)| format!("{name} = {number}; ")).collect()
    })
}

/// The inside of a message.
fn message() -> impl Strategy<Value = String> {
    let fields = (vec((field_type(), name()), 0..4), vec((name(), vec(name(), 1..3)), 0..3));
    let leaf = fields.prop_map(|(fields, oneofs)| {
        let (mut text, mut number) = (String::new(), 0);
        for (kind, name) in fields {
            number += 1;
            text += &format!("{kind} {name} = {number}; ");
        }
        for (oneof, names) in oneofs {
            text += &format!("oneof {oneof} {{ ");
            for name in names {
                number += 1;
                text += &format!("string {name} = {number}; ");
            }
            text += "} ";
        }
        text
    });
    leaf.prop_recursive(2, 6, 2, |inner| {
        (inner.clone(), vec((name(), inner), 0..2), vec((name(), values()), 0..2)).prop_map(
            |(mut text, messages, enums)| {
                messages.iter().for_each(|(name, m)| text += &format!("message {name} {{ {m}}} "));
                enums.iter().for_each(|(name, e)| text += &format!("enum {name} {{ {e}}} "));
                text
            },
        )
    })
}

fn with_all_sides() -> ServiceGenerator {
    ServiceGenerator::new().blocking_client(true).blocking_server(true)
}

/// A file of package `p`, or without one.
fn file() -> impl Strategy<Value = String> {
    let messages = vec((name(), message()), 0..3);
    let enums = vec((name(), values()), 0..2);
    let services = vec((name(), vec(name(), 0..3)), 0..2);
    (messages, enums, services, any::<bool>()).prop_map(
        |(messages, enums, services, has_package)| {
            let mut text = "syntax = \"proto2\"; package p;
            message Tree { enum E { ZERO = 0; } }\n"
                .to_owned();
            messages.iter().for_each(|(name, m)| text += &format!("message {name} {{ {m}}}\n"));
            enums.iter().for_each(|(name, e)| text += &format!("enum {name} {{ {e}}}\n"));
            for (name, methods) in services {
                text += &format!("service {name} {{ ");
                methods.iter().for_each(|m| text += &format!("rpc {m}(Tree) returns (Tree); "));
                text += "}\n";
            }
            if has_package { text } else { text.replace("package p;", "").replace(".p.", ".") }
        },
    )
}

/// The file of the code for this package, or for what has none.
fn code_in(folder: &Path) -> String {
    let files = ["p.rs", "_.rs"].map(|name| fs::read_to_string(folder.join(name)));
    files.into_iter().find_map(Result::ok).unwrap()
}

/// What prost-build makes of it without a look at the names; `None` if it panics.
fn unchecked(proto: &str) -> Option<String> {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("a.proto"), proto).unwrap();
    let files = protox::compile(["a.proto"], [folder.path()]).unwrap();
    let mut config = prost_build::Config::new();
    config.out_dir(folder.path()).service_generator(Box::new(with_all_sides()));
    catch_unwind(AssertUnwindSafe(|| config.compile_fds(files).unwrap())).ok()?;
    Some(code_in(folder.path()))
}

/// The first name that code has twice, or what else is wrong with it.
fn fault_of(code: &str) -> Option<String> {
    match syn::parse_file(code) {
        Ok(file) => twice_in(&file.items),
        Err(error) => Some(error.to_string()),
    }
}

fn twice_in(items: &[Item]) -> Option<String> {
    let mut types = HashSet::new();
    let mut methods = HashMap::<String, HashSet<String>>::new();
    for item in items {
        let twice = match item {
            Item::Struct(item) => {
                let methods = methods.entry(item.ident.to_string()).or_default();
                is_second(&mut types, &item.ident).or_else(|| twice_in_struct(item, methods))
            }
            Item::Enum(item) => {
                let mut variants = HashSet::new();
                let mut names = item.variants.iter().map(|variant| &variant.ident);
                is_second(&mut types, &item.ident)
                    .or_else(|| names.find_map(|name| is_second(&mut variants, name)))
            }
            Item::Trait(item) => {
                let mut names = HashSet::new();
                let mut methods = item.items.iter().filter_map(|item| match item {
                    syn::TraitItem::Fn(method) => Some(&method.sig.ident),
                    _ => None,
                });
                is_second(&mut types, &item.ident)
                    .or_else(|| methods.find_map(|name| is_second(&mut names, name)))
            }
            Item::Impl(item) if item.trait_.is_none() => {
                let Type::Path(path) = &*item.self_ty else { continue };
                let name = &path.path.segments.last().unwrap().ident;
                let methods = methods.entry(name.to_string()).or_default();
                item.items.iter().find_map(|item| match item {
                    ImplItem::Fn(method) => is_second(methods, &method.sig.ident),
                    _ => None,
                })
            }
            Item::Mod(item) => is_second(&mut types, &item.ident)
                .or_else(|| twice_in(&item.content.as_ref().unwrap().1)),
            _ => None,
        };
        if twice.is_some() {
            return twice;
        }
    }
    None
}

/// Looks at a struct's fields, and at the methods that prost derives for them.
fn twice_in_struct(item: &ItemStruct, methods: &mut HashSet<String>) -> Option<String> {
    let Fields::Named(fields) = &item.fields else { return None };
    let mut names = HashSet::new();
    for field in &fields.named {
        let name = field.ident.as_ref().unwrap();
        let attributes: String = (field.attrs.iter())
            .filter_map(|attribute| attribute.meta.require_list().ok())
            .map(|list| list.tokens.to_string())
            .collect();
        let has = |word: &str| attributes.contains(word);
        let plain = name.to_string().trim_start_matches("r#").to_owned();
        let accessors = match () {
            () if has("enumeration (") || has("enumeration(") => {
                if name.to_string().starts_with("r#") {
                    return Some(format!("prost panics at {name}"));
                }
                vec![format!("get_{plain}"), format!("insert_{plain}")]
            }
            () if has("map =") || has("message") || has("oneof") => vec![],
            () if has("enumeration") && has("repeated") => {
                vec![plain.clone(), format!("push_{plain}")]
            }
            () if has("enumeration") => vec![plain.clone(), format!("set_{plain}")],
            () if has("optional") => vec![plain.clone()],
            () => vec![],
        };
        let twice = is_second(&mut names, name)
            .or_else(|| accessors.into_iter().find(|method| !methods.insert(method.clone())));
        if twice.is_some() {
            return twice;
        }
    }
    None
}

fn is_second(names: &mut HashSet<String>, name: &syn::Ident) -> Option<String> {
    (!names.insert(name.to_string())).then(|| name.to_string())
}

proptest! {
    #[test]
    fn names_are_refused_that_would_not_compile_and_no_others(
        proto in file(),
        (async_fn_in_trait, default_bodies) in any::<(bool, bool)>(),
    ) {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("a.proto"), &proto).unwrap();
        let result = ttrpc_codegen::configure()
            .blocking_client(true)
            .blocking_server(true)
            .async_fn_in_trait(async_fn_in_trait)
            .default_bodies(default_bodies)
            .out_dir(folder.path())
            .compile_protos(&["a.proto"], &[folder.path()]);
        match result {
            Ok(()) => {
                let code = code_in(folder.path());
                prop_assert_eq!(fault_of(&code), None, "{}\n{}", proto, code);
            }
            Err(error) => {
                let error = error.to_string();
                let is_ours = ["both become", "becomes both", "has no letter", "prost cannot"];
                // Others are of protobuf's own rules.
                if is_ours.iter().any(|words| error.contains(words)) {
                    let fault = unchecked(&proto).map_or(Some("panics".to_owned()), |code| fault_of(&code));
                    prop_assert!(fault.is_some(), "{error}\n{proto}");
                    prop_assert!(error.starts_with("a.proto:"), "{error}");
                }
            }
        }
    }
}
