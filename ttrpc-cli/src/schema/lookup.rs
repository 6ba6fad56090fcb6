//! From what a user types to a method or a type.

use prost_reflect::{EnumDescriptor, MessageDescriptor, MethodDescriptor, ServiceDescriptor};

use super::{Schema, Source};
use crate::failure::Failure;

/// Names that an error may list.
const MAX_LISTED: usize = 20;

/// So many of these names as are read, and how many more there are.
fn listed(names: &[impl AsRef<str>]) -> String {
    let shown: Vec<_> = names.iter().take(MAX_LISTED).map(AsRef::as_ref).collect();
    let more = match names.len() - shown.len() {
        0 => String::new(),
        more => format!(", and {more} more"),
    };
    shown.join(", ") + &more
}

/// What a name stands for.
#[derive(Clone, Debug)]
pub enum Symbol {
    Service(ServiceDescriptor),
    Method(MethodDescriptor),
    Message(MessageDescriptor),
    Enum(EnumDescriptor),
}

/// All that a short name may stand for.
#[derive(Clone, Debug)]
pub struct Candidates {
    name: String,
    pub methods: Vec<MethodDescriptor>,
}

impl Candidates {
    /// The only one.
    ///
    /// # Errors
    /// All of them, if there are several.
    pub fn only_or_ask(mut self) -> Result<MethodDescriptor, Self> {
        if self.methods.len() == 1 { Ok(self.methods.remove(0)) } else { Err(self) }
    }

    /// The only one.
    ///
    /// # Errors
    /// [`Failure::Usage`] with the full names, if there are several.
    pub fn only(self) -> Result<MethodDescriptor, Failure> {
        self.only_or_ask().map_err(|several| {
            let names: Vec<String> = several.methods.iter().map(method_name).collect();
            Failure::Usage(format!(
                "`{}` may be any of these, name one: {}",
                several.name,
                listed(&names)
            ))
        })
    }
}

/// Which of several names is that of the newest version; `None` if they differ in more than a part such
/// as `v2`.
pub fn newest<'a>(names: impl IntoIterator<Item = &'a str>) -> Option<usize> {
    let version = |part: &str| part.strip_prefix('v').and_then(|digits| digits.parse::<u32>().ok());
    let mut rest: Option<Vec<&str>> = None;
    let mut best: Option<(u32, usize)> = None;
    for (index, name) in names.into_iter().enumerate() {
        let (versions, others): (Vec<_>, Vec<_>) =
            name.split('.').partition(|part| version(part).is_some());
        let [only] = versions[..] else { return None };
        if *rest.get_or_insert_with(|| others.clone()) != others {
            return None;
        }
        best = best.max(version(only).map(|version| (version, index)));
    }
    best.map(|(_, index)| index)
}

/// `greeter.v1.Greeter/SayHello`.
pub fn method_name(method: &MethodDescriptor) -> String {
    format!("{}/{}", method.parent_service().full_name(), method.name())
}

impl Schema {
    /// The methods that `Service/Method`, `Service.Method` or `Method` may mean. The service's name may
    /// be short: `Task` for `containerd.task.v3.Task`.
    ///
    /// # Errors
    /// [`Failure::Usage`] that names what there is, if nothing fits.
    pub fn find_methods(&self, name: &str) -> Result<Candidates, Failure> {
        let (service, method) = match name.rsplit_once('/').or_else(|| name.rsplit_once('.')) {
            Some((service, method)) => (Some(service.trim_start_matches('/')), method),
            None => (None, name),
        };
        let services: Vec<_> = match service {
            Some(service) => self.find_services(service)?,
            None => self.pool().services().collect(),
        };
        let methods: Vec<_> = (services.iter())
            .flat_map(|service| service.methods())
            .filter(|candidate| candidate.name() == method)
            .collect();
        if !methods.is_empty() {
            return Ok(Candidates { name: name.to_owned(), methods });
        }
        Err(Failure::Usage(match (service, &services[..]) {
            (Some(_), [service, ..]) => {
                let names: Vec<_> = service.methods().map(|m| m.name().to_owned()).collect();
                format!(
                    "service {} has no method `{method}`{}; it has: {}",
                    service.full_name(),
                    did_you_mean(method, names.iter().map(String::as_str)),
                    listed(&names)
                )
            }
            _ => format!(
                "no service has a method `{method}` in {}{}{}{}",
                self.source(),
                did_you_mean(method, self.method_names().iter().map(String::as_str)),
                self.all_methods().map_or(String::new(), |all| format!("; there are: {all}")),
                self.other_schemas(),
            ),
        }))
    }

    /// Where else a name may be known, if nobody has said what the server has.
    fn other_schemas(&self) -> &'static str {
        match self.source() {
            Source::BuiltIn => {
                "; --proto FILE or --descriptor-set FILE adds what else a server has"
            }
            _ => "",
        }
    }

    /// The short names of all methods.
    fn method_names(&self) -> Vec<String> {
        let services = self.pool().services();
        let methods = services.flat_map(|service| service.methods().collect::<Vec<_>>());
        methods.map(|method| method.name().to_owned()).collect()
    }

    /// The names of all methods; `None` if they are too many to be read.
    fn all_methods(&self) -> Option<String> {
        let services = self.pool().services();
        let names: Vec<_> =
            services.flat_map(|service| service.methods().collect::<Vec<_>>()).collect();
        let names: Vec<_> = names.iter().map(method_name).collect();
        (names.len() <= MAX_LISTED).then(|| names.join(", "))
    }

    /// The services that a name may mean: the one with this full name, or those whose name ends so.
    ///
    /// # Errors
    /// [`Failure::Usage`] that names what there is, if nothing fits.
    pub fn find_services(&self, name: &str) -> Result<Vec<ServiceDescriptor>, Failure> {
        if let Some(service) = self.pool().get_service_by_name(name) {
            return Ok(vec![service]);
        }
        let services: Vec<_> =
            self.pool().services().filter(|known| ends_with(known.full_name(), name)).collect();
        if !services.is_empty() {
            return Ok(services);
        }
        let known: Vec<_> =
            self.pool().services().map(|known| known.full_name().to_owned()).collect();
        Err(Failure::Usage(format!(
            "there is no service `{name}` in {}{}; there are: {}{}",
            self.source(),
            did_you_mean(name, known.iter().flat_map(|known| [known, last_part(known)])),
            listed(&known),
            self.other_schemas(),
        )))
    }

    /// The messages and enums that a short name may stand for, each with its package.
    pub fn find_types(&self, name: &str) -> Vec<(String, Symbol)> {
        let fits = |symbol: &Symbol| match symbol {
            Symbol::Message(message) => ends_with(message.full_name(), name),
            Symbol::Enum(enumeration) => ends_with(enumeration.full_name(), name),
            Symbol::Service(_) | Symbol::Method(_) => false,
        };
        let all = self.symbols().into_iter().map(|(_, symbol)| symbol);
        all.filter(fits)
            .map(|symbol| match &symbol {
                Symbol::Enum(enumeration) => (enumeration.package_name().to_owned(), symbol),
                Symbol::Message(message) => (message.package_name().to_owned(), symbol),
                Symbol::Service(_) | Symbol::Method(_) => (String::new(), symbol),
            })
            .collect()
    }

    /// What a full or short name stands for: a service, a method, a message or an enum.
    ///
    /// # Errors
    /// [`Failure::Usage`] if it stands for nothing or for several things.
    pub fn find_symbol(&self, name: &str) -> Result<Symbol, Failure> {
        let name = name.trim_start_matches('.');
        if name.contains('/') {
            return self.find_methods(name)?.only().map(Symbol::Method);
        }
        let all = self.symbols();
        let mut found: Vec<_> = all.iter().filter(|(known, _)| known == name).collect();
        if found.is_empty() {
            found = all.iter().filter(|(known, _)| ends_with(known, name)).collect();
        }
        match &found[..] {
            [(_, symbol)] => Ok(symbol.clone()),
            [] => Err(Failure::Usage(format!(
                "`{name}` is not in {}{}; `ttrpc list` prints its services{}",
                self.source(),
                did_you_mean(name, all.iter().flat_map(|(known, _)| [known, last_part(known)])),
                self.other_schemas(),
            ))),
            several => {
                let names: Vec<_> = several.iter().map(|(name, _)| name.as_str()).collect();
                Err(Failure::Usage(format!(
                    "`{name}` may be any of these, name one: {}",
                    listed(&names)
                )))
            }
        }
    }

    fn symbols(&self) -> Vec<(String, Symbol)> {
        let mut symbols = Vec::new();
        for service in self.pool().services() {
            for method in service.methods() {
                symbols.push((method.full_name().to_owned(), Symbol::Method(method)));
            }
            symbols.push((service.full_name().to_owned(), Symbol::Service(service)));
        }
        for message in self.pool().all_messages().filter(|message| !message.is_map_entry()) {
            symbols.push((message.full_name().to_owned(), Symbol::Message(message)));
        }
        for enumeration in self.pool().all_enums() {
            symbols.push((enumeration.full_name().to_owned(), Symbol::Enum(enumeration)));
        }
        symbols
    }
}

/// Of a name in which a letter or two are others than in this one, a question.
fn did_you_mean<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> String {
    /// As alike as words are that differ in one letter of four.
    const ALIKE: f64 = 0.75;
    let name = name.to_lowercase();
    let likeness = known.map(|known| {
        let of_letters = strsim::normalized_damerau_levenshtein(&known.to_lowercase(), &name);
        (of_letters, known)
    });
    match likeness.max_by(|(one, _), (other, _)| one.total_cmp(other)) {
        Some((likeness, known)) if likeness >= ALIKE => format!(" (did you mean `{known}`?)"),
        _ => String::new(),
    }
}

fn last_part(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}

/// Whether a full name ends with these parts.
fn ends_with(full_name: &str, name: &str) -> bool {
    full_name == name || full_name.strip_suffix(name).is_some_and(|rest| rest.ends_with('.'))
}

#[cfg(test)]
mod tests {
    use crate::schema::{builtin, files};

    fn methods(name: &str) -> Result<Vec<String>, String> {
        let found = builtin().find_methods(name).map_err(|error| error.to_string())?;
        Ok(found.methods.iter().map(super::method_name).collect())
    }

    #[test]
    fn methods_are_found_by_full_and_short_names() {
        let state = "containerd.task.v3.Task/State";
        for name in [state, "v3.Task/State", "/containerd.task.v3.Task/State", "v3.Task.State"] {
            assert_eq!(methods(name).unwrap(), [state], "{name}");
        }
        assert_eq!(methods("Task/State").unwrap().len(), 2);
        assert_eq!(methods("PingSandbox").unwrap().len(), 1);
    }

    #[test]
    fn the_newest_of_versions_is_known_and_of_other_names_is_not() {
        assert_eq!(super::newest(["a.v2.B", "a.v10.B", "a.v3.B"]), Some(1));
        assert_eq!(super::newest(["a.v2.B", "c.v3.B"]), None);
        assert_eq!(super::newest(["a.v2.B", "a.B"]), None);
    }

    #[test]
    fn what_is_not_there_is_told_with_what_is() {
        assert!(methods("v3.Task/Stat").unwrap_err().contains("State, Create"));
        assert!(methods("No.Such/State").unwrap_err().contains("grpc.health.v1.Health"));
        assert!(methods("Nothing").unwrap_err().contains("no service has a method `Nothing`"));
        // A part of a word is no name.
        assert!(methods("ask/State").is_err());
    }

    #[test]
    fn an_error_lists_some_names_and_counts_the_others() {
        let services: String = (0..500).map(|at| format!("service S{at} {{}}\n")).collect();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("p.proto");
        std::fs::write(&path, format!("syntax = \"proto3\";\n{services}")).unwrap();
        let schema = files::compile(&[path], &[]).unwrap();
        let error = schema.find_services("no.such").unwrap_err().to_string();
        assert!(error.contains("S19, and 480 more") && error.len() < 400, "{error}");
    }

    #[test]
    fn a_name_that_is_nearly_one_is_asked_for() {
        let mean = |name: &str| {
            let error = methods(name).unwrap_err();
            error
                .split("did you mean `")
                .nth(1)
                .map(|rest| rest.split('`').next().unwrap().to_owned())
        };
        assert_eq!(mean("v3.Task/stat").as_deref(), Some("Stats"));
        assert_eq!(mean("v3.Task/state").as_deref(), Some("State"));
        assert_eq!(mean("pingsandbox").as_deref(), Some("PingSandbox"));
        assert_eq!(mean("Taks/State").as_deref(), Some("Task"));
        assert_eq!(
            mean("containerd.task.v3.Tsk/State").as_deref(),
            Some("containerd.task.v3.Task")
        );
        assert_eq!(mean("v3.Task/Nothing"), None);
        let error = builtin().find_symbol("Mout").unwrap_err().to_string();
        assert!(error.contains("did you mean `Mount`?"), "{error}");
    }

    #[test]
    fn several_are_told_apart_by_the_user() {
        let error = builtin().find_methods("Task/State").unwrap().only().unwrap_err().to_string();
        assert!(error.contains("containerd.task.v2.Task/State"), "{error}");
        let error = builtin().find_symbol("StateRequest").unwrap_err().to_string();
        assert!(error.contains("containerd.task.v3.StateRequest"), "{error}");
    }
}
