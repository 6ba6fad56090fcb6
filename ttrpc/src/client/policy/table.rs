//! Defaults by method as a text.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    str::FromStr,
    time::Duration,
};

use super::{CallDefaults, MethodDefaults, Retry, RetryBudget};
use crate::{Code, client::Backoff};

/// Why a text of [`MethodDefaults`] makes no sense.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DefaultsError {
    line: usize,
    cause: String,
}

impl DefaultsError {
    /// Returns the number of the line, counted from 1.
    pub fn line(&self) -> usize {
        self.line
    }
}

impl fmt::Display for DefaultsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.cause)
    }
}

impl std::error::Error for DefaultsError {}

/// A line's fields, by name.
type Fields<'a> = BTreeMap<&'a str, &'a str>;

impl FromStr for MethodDefaults {
    type Err = DefaultsError;

    fn from_str(text: &str) -> Result<Self, DefaultsError> {
        let mut table = Table::default();
        // Editors of some systems begin a file with it.
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        for (line, content) in (1..).zip(text.lines()) {
            table.read(line, content).map_err(|cause| DefaultsError { line, cause })?;
        }
        Ok(table.into_defaults())
    }
}

#[derive(Default)]
struct Table<'a> {
    /// The line of each pattern.
    lines: HashMap<&'a str, usize>,
    rows: Vec<(Pattern<'a>, CallDefaults, Option<Retry>)>,
    budget: RetryBudget,
}

enum Pattern<'a> {
    All,
    Service(&'a str),
    Method(&'a str, &'a str),
}

impl<'a> Table<'a> {
    fn read(&mut self, line: usize, content: &'a str) -> Result<(), String> {
        let words = words(content)?;
        let Some((&first, words)) = words.split_first() else { return Ok(()) };
        if let Some(before) = self.lines.insert(first, line) {
            return Err(format!("`{first}` has line {before} already"));
        }
        let mut fields = Fields::new();
        for word in words {
            let (name, value) = field(word)?;
            if fields.insert(name, value).is_some() {
                return Err(format!("`{name}` is set twice"));
            }
        }
        if first == "budget" {
            self.budget = budget(&mut fields)?;
        } else {
            let pattern = pattern(first)?;
            let retry = retry(&mut fields)?;
            self.rows.push((pattern, defaults(&mut fields)?, retry));
        }
        match fields.keys().next() {
            Some(unknown) if first == "budget" => {
                Err(format!("`{unknown}` is no field of `budget`: tokens and ratio are"))
            }
            Some(unknown) => Err(format!(
                "`{unknown}` is no field: timeout, retry, retry.codes, retry.backoff, idempotent and metadata.KEY are"
            )),
            None => Ok(()),
        }
    }

    fn into_defaults(self) -> MethodDefaults {
        let Table { rows, budget, .. } = self;
        rows.into_iter().fold(MethodDefaults::new(), |all, (pattern, mut row, retry)| {
            if let Some(retry) = retry {
                row = row.retry(retry.budget(budget.clone()));
            }
            match pattern {
                Pattern::All => all.all(row),
                Pattern::Service(service) => all.service(service, row),
                Pattern::Method(service, method) => all.method(service, method, row),
            }
        })
    }
}

/// Splits a line at spaces that are not between quotes, up to a comment.
fn words(line: &str) -> Result<Vec<&str>, String> {
    let (mut words, mut rest) = (Vec::new(), line.trim_start());
    while !rest.is_empty() && !rest.starts_with('#') {
        let mut is_quoted = false;
        let end = rest.find(|c: char| {
            is_quoted ^= c == '"';
            !is_quoted && c.is_whitespace()
        });
        if is_quoted {
            return Err("a quote is not closed".to_owned());
        }
        let (word, after) = rest.split_at(end.unwrap_or(rest.len()));
        words.push(word);
        rest = after.trim_start();
    }
    Ok(words)
}

fn field(word: &str) -> Result<(&str, &str), String> {
    let (name, value) =
        word.split_once('=').ok_or_else(|| format!("`{word}` is no field: `name=value` is"))?;
    if name.contains(|c: char| c == '"' || c.is_whitespace()) {
        return Err(format!("`{name}` is no name of a field: quotes go around a value"));
    }
    let unquoted = value.strip_prefix('"').and_then(|value| value.strip_suffix('"'));
    match unquoted.unwrap_or(value) {
        value if value.contains('"') => {
            Err(format!("`{word}` has a quote inside of a value: quotes go around all of it"))
        }
        value => Ok((name, value)),
    }
}

fn pattern(text: &str) -> Result<Pattern<'_>, String> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_' || c == '.';
    let is_name = |name: &str| !name.is_empty() && name.chars().all(is_part);
    match text.split_once('/') {
        None if text == "*" => Ok(Pattern::All),
        Some((service, "*")) if is_name(service) => Ok(Pattern::Service(service)),
        Some((service, method)) if is_name(service) && is_name(method) => {
            Ok(Pattern::Method(service, method))
        }
        _ => Err(format!("`{text}` is no pattern: `*`, `Service/*` and `Service/Method` are")),
    }
}

fn defaults(fields: &mut Fields<'_>) -> Result<CallDefaults, String> {
    let mut defaults = CallDefaults::new();
    match fields.remove("timeout") {
        None => {}
        Some("none") => defaults = defaults.no_timeout(),
        Some(text) => match duration(text)? {
            Duration::ZERO => {
                return Err("a timeout of zero ends every call: `none` is no limit".to_owned());
            }
            timeout => defaults = defaults.timeout(timeout),
        },
    }
    match fields.remove("idempotent") {
        None => {}
        Some(text @ ("yes" | "no")) => defaults = defaults.idempotent(text == "yes"),
        Some(other) => return Err(format!("`{other}` is neither `yes` nor `no`")),
    }
    let is_metadata =
        |name: &str| name.strip_prefix("metadata.").is_some_and(|key| !key.is_empty());
    let names: Vec<_> = fields.keys().copied().filter(|name| is_metadata(name)).collect();
    for name in names {
        let key = &name["metadata.".len()..];
        if defaults.has_metadata(key) {
            return Err(format!("`{name}` is set twice: upper and lower case are the same"));
        }
        defaults.add_metadata(key, fields.remove(name).unwrap_or_default());
    }
    Ok(defaults)
}

fn retry(fields: &mut Fields<'_>) -> Result<Option<Retry>, String> {
    let (codes, backoff) = (fields.remove("retry.codes"), fields.remove("retry.backoff"));
    let mut retry = match fields.remove("retry") {
        None if codes.or(backoff).is_some() => {
            return Err(
                "`retry.codes` and `retry.backoff` need `retry` on the same line".to_owned()
            );
        }
        None => return Ok(None),
        Some("none") => Retry::none(),
        Some(text) => match text.parse() {
            Ok(attempts) if attempts > 0 => Retry::new().max_attempts(attempts),
            _ => return Err(format!("`{text}` is no number of attempts, and not `none`")),
        },
    };
    if let Some(codes) = codes {
        retry = retry.codes(codes.split(',').map(code).collect::<Result<Vec<_>, _>>()?);
    }
    if let Some(backoff) = backoff {
        let (first, longest) = backoff
            .split_once("..")
            .ok_or_else(|| format!("`{backoff}` is not like `100ms..2s`"))?;
        let (first, longest) = (duration(first)?, duration(longest)?);
        if first > longest {
            return Err(format!("`{backoff}` begins with the longest pause"));
        }
        retry = retry.backoff(Backoff::new().first(first).longest(longest));
    }
    Ok(Some(retry))
}

fn budget(fields: &mut Fields<'_>) -> Result<RetryBudget, String> {
    let mut text = |name| fields.remove(name).ok_or("`budget` needs `tokens` and `ratio`");
    let (tokens, ratio) = (text("tokens")?, text("ratio")?);
    let max_tokens = tokens.parse().ok().filter(|tokens| *tokens > 0);
    let max_tokens =
        max_tokens.ok_or_else(|| format!("`{tokens}` is no number of tokens, such as 100"))?;
    let per_success = ratio.parse().ok().filter(|ratio| *ratio >= 0.001);
    let per_success =
        per_success.ok_or_else(|| format!("`{ratio}` is no ratio, which is 0.001 or more"))?;
    Ok(RetryBudget::new(max_tokens, per_success))
}

fn code(name: &str) -> Result<Code, String> {
    let mut failures = (Code::Cancelled as i32..=Code::Unauthenticated as i32).map(Code::from_i32);
    let code = failures.find(|code| code.name() == name);
    code.ok_or_else(|| format!("`{name}` is no code of a failure, such as UNAVAILABLE"))
}

fn duration(text: &str) -> Result<Duration, String> {
    const UNITS: [(&str, u64); 5] = [
        ("us", 1_000),
        ("ms", 1_000_000),
        ("s", 1_000_000_000),
        ("m", 60_000_000_000),
        ("h", 3_600_000_000_000),
    ];
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = UNITS.iter().find(|(name, _)| *name == unit).map(|(_, nanos)| *nanos);
    let nanos = number.parse::<u64>().ok().zip(unit).and_then(|(n, unit)| n.checked_mul(unit));
    nanos.map(Duration::from_nanos).ok_or_else(|| {
        format!("`{text}` is no time: a whole number and us, ms, s, m or h are, at most 500 years")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        text.parse::<MethodDefaults>().expect_err(text).to_string()
    }

    #[test]
    fn an_error_names_the_line_and_the_cause() {
        let cases = [
            (
                "* tiemout=1s",
                "line 1: `tiemout` is no field: timeout, retry, retry.codes, retry.backoff, idempotent and metadata.KEY are",
            ),
            ("\n\n* timeout", "line 3: `timeout` is no field: `name=value` is"),
            (
                "* timeout=1",
                "line 1: `1` is no time: a whole number and us, ms, s, m or h are, at most 500 years",
            ),
            (
                "* timeout=99999999999h",
                "line 1: `99999999999h` is no time: a whole number and us, ms, s, m or h are, at most 500 years",
            ),
            ("* timeout=0s", "line 1: a timeout of zero ends every call: `none` is no limit"),
            ("# all\n* timeout=1s timeout=2s", "line 2: `timeout` is set twice"),
            ("a.S/M timeout=1s\na.S/M retry=2", "line 2: `a.S/M` has line 1 already"),
            (
                "a.S timeout=1s",
                "line 1: `a.S` is no pattern: `*`, `Service/*` and `Service/Method` are",
            ),
            (
                "a.*/M timeout=1s",
                "line 1: `a.*/M` is no pattern: `*`, `Service/*` and `Service/Method` are",
            ),
            (
                "/a.S/M timeout=1s",
                "line 1: `/a.S/M` is no pattern: `*`, `Service/*` and `Service/Method` are",
            ),
            ("* retry=0", "line 1: `0` is no number of attempts, and not `none`"),
            (
                "* retry.codes=UNAVAILABLE",
                "line 1: `retry.codes` and `retry.backoff` need `retry` on the same line",
            ),
            (
                "* retry=2 retry.codes=UNAVAILABLE,GONE",
                "line 1: `GONE` is no code of a failure, such as UNAVAILABLE",
            ),
            (
                "* retry=2 retry.codes=OK",
                "line 1: `OK` is no code of a failure, such as UNAVAILABLE",
            ),
            ("* retry=2 retry.backoff=1s", "line 1: `1s` is not like `100ms..2s`"),
            ("* idempotent=true", "line 1: `true` is neither `yes` nor `no`"),
            (
                "* metadata.=a",
                "line 1: `metadata.` is no field: timeout, retry, retry.codes, retry.backoff, idempotent and metadata.KEY are",
            ),
            ("* metadata.a=\"b", "line 1: a quote is not closed"),
            (
                "* metadata.a=b\"c\"",
                "line 1: `metadata.a=b\"c\"` has a quote inside of a value: quotes go around all of it",
            ),
            ("budget tokens=1", "line 1: `budget` needs `tokens` and `ratio`"),
            ("budget tokens=-1 ratio=1", "line 1: `-1` is no number of tokens, such as 100"),
            ("budget tokens=0.5 ratio=1", "line 1: `0.5` is no number of tokens, such as 100"),
            ("budget tokens=0 ratio=1", "line 1: `0` is no number of tokens, such as 100"),
            ("budget tokens=5 ratio=0", "line 1: `0` is no ratio, which is 0.001 or more"),
            ("* retry=2 retry.backoff=10s..1s", "line 1: `10s..1s` begins with the longest pause"),
            (
                "* metadata.Tenant=a metadata.tenant=b",
                "line 1: `metadata.tenant` is set twice: upper and lower case are the same",
            ),
            (
                "* metadata.\"a b\"=c",
                "line 1: `metadata.\"a b\"` is no name of a field: quotes go around a value",
            ),
            (
                "a.S/M# timeout=1s",
                "line 1: `a.S/M#` is no pattern: `*`, `Service/*` and `Service/Method` are",
            ),
            (
                "budget tokens=1 ratio=1 timeout=1s",
                "line 1: `timeout` is no field of `budget`: tokens and ratio are",
            ),
        ];
        for (text, expected) in cases {
            assert_eq!(error(text), expected);
        }
        for text in ["\n*", "\u{feff}* timeout=1s"] {
            assert_eq!(text.parse::<MethodDefaults>().map(drop), Ok(()));
        }
        assert_eq!("\na".parse::<MethodDefaults>().expect_err("no pattern").line(), 2);
    }

    #[test]
    fn times_have_units() {
        let cases = [
            ("7us", Duration::from_micros(7)),
            ("20ms", Duration::from_millis(20)),
            ("0s", Duration::ZERO),
            ("90m", Duration::from_secs(5400)),
            ("2h", Duration::from_secs(7200)),
        ];
        for (text, expected) in cases {
            assert_eq!(duration(text), Ok(expected));
        }
        for text in ["", "s", "1.5s", "1 s", "+1s", "1ns"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_text_says_what_code_says() {
        let text = "
            * timeout=10s # for all
            a.S/* retry=3 metadata.tenant=blue
            # a comment alone
            a.S/Get retry=5 retry.codes=UNAVAILABLE,ABORTED retry.backoff=10ms..2s idempotent=yes
            a.S/Wait timeout=none retry=none metadata.note=\"two # words\" metadata.empty=
            budget tokens=50 ratio=0.2
        ";
        let budget = RetryBudget::new(50, 0.2);
        let backoff =
            Backoff::new().first(Duration::from_millis(10)).longest(Duration::from_secs(2));
        let get = Retry::new().max_attempts(5).codes([Code::Unavailable, Code::Aborted]);
        let service = CallDefaults::new().retry(Retry::new().budget(budget.clone()));
        let wait = CallDefaults::new().no_timeout().retry(Retry::none().budget(budget.clone()));
        let code = MethodDefaults::new()
            .all(CallDefaults::new().timeout(Duration::from_secs(10)))
            .service("a.S", service.metadata("tenant", "blue"))
            .method(
                "a.S",
                "Get",
                CallDefaults::new().idempotent(true).retry(get.backoff(backoff).budget(budget)),
            )
            .method("a.S", "Wait", wait.metadata("note", "two # words").metadata("empty", ""));
        let parsed: MethodDefaults = text.parse().expect("it is right");
        for method in ["Get", "Wait", "Other"] {
            let [parsed, code] = [&parsed, &code].map(|defaults| {
                let mut options = crate::client::meta::CallOptions::default();
                let found = defaults.find("a.S", method);
                found.complete(&mut options);
                let mut metadata: Vec<_> = options.metadata().iter().collect();
                metadata.sort_unstable();
                format!(
                    "{:?} {:?} {:?} {metadata:?}",
                    found.retry(),
                    options.timeout,
                    options.is_method_idempotent
                )
            });
            assert_eq!(parsed, code, "{method}");
        }
    }
}
