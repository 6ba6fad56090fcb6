//! The attribute `plugin` of the crate `ttrpc-nri`, which exports it.

use proc_macro::{Delimiter, Group, TokenStream, TokenTree};

/// Handlers and the events that they are for.
const HANDLERS: [(&str, &str); 14] = [
    ("run_pod_sandbox", "RunPodSandbox"),
    ("update_pod_sandbox", "UpdatePodSandbox"),
    ("post_update_pod_sandbox", "PostUpdatePodSandbox"),
    ("stop_pod_sandbox", "StopPodSandbox"),
    ("remove_pod_sandbox", "RemovePodSandbox"),
    ("create_container", "CreateContainer"),
    ("post_create_container", "PostCreateContainer"),
    ("start_container", "StartContainer"),
    ("post_start_container", "PostStartContainer"),
    ("update_container", "UpdateContainer"),
    ("post_update_container", "PostUpdateContainer"),
    ("stop_container", "StopContainer"),
    ("remove_container", "RemoveContainer"),
    ("validate_container_adjustment", "ValidateContainerAdjustment"),
];

/// Writes `const EVENTS` for an `impl Plugin`: the events whose handlers are in it.
#[proc_macro_attribute]
pub fn plugin(arguments: TokenStream, item: TokenStream) -> TokenStream {
    if !arguments.is_empty() {
        return error("`#[plugin]` takes no arguments: `configure` may narrow the events");
    }
    let mut tokens: Vec<_> = item.into_iter().collect();
    let is_impl = tokens.iter().any(|token| is_word(token, "impl"));
    match tokens.last_mut() {
        Some(TokenTree::Group(body)) if is_impl && body.delimiter() == Delimiter::Brace => {
            let mut inside = events(body.stream());
            inside.extend(body.stream());
            let span = body.span();
            *body = Group::new(Delimiter::Brace, inside);
            body.set_span(span);
        }
        _ => return error("`#[plugin]` belongs on an `impl Plugin for …`"),
    }
    tokens.into_iter().collect()
}

/// The constant for the handlers in the body of an `impl`.
fn events(body: TokenStream) -> TokenStream {
    let tokens: Vec<_> = body.into_iter().collect();
    let mut text =
        String::from("const EVENTS: ::ttrpc_nri::EventMask = ::ttrpc_nri::EventMask::NONE");
    for (handler, event) in HANDLERS {
        let is_there =
            tokens.windows(2).any(|pair| is_word(&pair[0], "fn") && is_word(&pair[1], handler));
        if is_there {
            text.push_str(&format!(".with(::ttrpc_nri::Event::{event})"));
        }
    }
    text.push(';');
    text.parse().expect("it is Rust")
}

fn is_word(token: &TokenTree, word: &str) -> bool {
    matches!(token, TokenTree::Ident(ident) if ident.to_string() == word)
}

fn error(text: &str) -> TokenStream {
    format!("::core::compile_error!({text:?});").parse().expect("it is Rust")
}
