//! Generated code with `async` and without: how it is written, and how it is called.

/// How a trait says that its methods are asynchronous.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Form {
    /// With `async fn`, and the macro above the trait.
    Macro,
    /// As the macro would expand it, but with a path before `Box`.
    Expanded,
    /// With futures of the implementation's own types, which it may write as `async fn`.
    InTrait,
    /// They are not.
    Blocking,
}

impl Form {
    pub(crate) fn flavor(self) -> Flavor {
        match self {
            Form::Macro | Form::Expanded | Form::InTrait => Flavor::Async,
            Form::Blocking => Flavor::Blocking,
        }
    }
}

/// Whether what is generated has `async`, or threads that wait.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Flavor {
    Async,
    Blocking,
}

impl Flavor {
    /// What stands in type names behind the service's.
    fn infix(self) -> &'static str {
        match self {
            Flavor::Async => "",
            Flavor::Blocking => "Blocking",
        }
    }

    /// The name of the trait that a server implements.
    pub(crate) fn trait_name(self, rust_name: &str) -> String {
        match self {
            Flavor::Async => rust_name.to_owned(),
            Flavor::Blocking => format!("{}Blocking", stem(rust_name)),
        }
    }

    pub(crate) fn server_name(self, rust_name: &str) -> String {
        format!("{}{}Server", stem(rust_name), self.infix())
    }

    pub(crate) fn client_name(self, rust_name: &str) -> String {
        format!("{}{}Client", stem(rust_name), self.infix())
    }
}

/// The start of the names of a service's server and client. A service named by a keyword has an
/// underscore behind its name, which there is no need for in front of more letters.
fn stem(rust_name: &str) -> &str {
    rust_name.trim_end_matches('_')
}
