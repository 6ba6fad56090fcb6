//! Groups of options that several commands have, and how their values are read.

use std::{path::PathBuf, time::Duration};

use clap::{Args, ValueEnum, ValueHint};

/// How long a call may take unless the command line says otherwise.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);

/// Where schemas come from.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Schema")]
pub struct SchemaOptions {
    /// Compile this .proto file; may be repeated
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub proto: Vec<PathBuf>,
    /// Look for imports in this folder; may be repeated
    #[arg(short = 'I', long = "include", value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub include: Vec<PathBuf>,
    /// Read this descriptor set; may be repeated
    #[arg(long, value_name = "FILE", conflicts_with = "proto", value_hint = ValueHint::FilePath)]
    pub descriptor_set: Vec<PathBuf>,
    /// Use only this source, but files that are named add to reflection [default: files that are named, else
    /// reflection, else builtin]
    #[arg(long, value_name = "SOURCE")]
    pub schema: Option<SchemaSource>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SchemaSource {
    /// The server's reflection service
    Reflection,
    /// The schemas in this program: containerd, NRI, health, reflection
    Builtin,
}

#[derive(Clone, Debug, Default, Args)]
pub struct MetadataOption {
    /// Metadata of each call, also of those that ask for the schema; may be repeated
    #[arg(short = 'H', long = "metadata", value_name = "KEY:VALUE", value_parser = parse_metadata)]
    pub metadata: Vec<(String, String)>,
}

#[derive(Clone, Copy, Debug, Args)]
pub struct TimeoutOption {
    /// How long connecting, and then each answer, may take: 300ms, 5s, 2m; 0 for ever
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = parse_duration)]
    timeout: Duration,
}

impl TimeoutOption {
    /// `None` for ever.
    pub fn limit(&self) -> Option<Duration> {
        limit(self.timeout)
    }
}

/// 0 means for ever.
pub fn limit(timeout: Duration) -> Option<Duration> {
    (!timeout.is_zero()).then_some(timeout)
}

/// `300ms`, `5s`, `1m 30s`, or a number of seconds.
///
/// # Errors
/// With a sentence, for anything else.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let parsed = match text.parse::<f64>() {
        Ok(seconds) => Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string()),
        Err(_) => humantime::parse_duration(text).map_err(|error| error.to_string()),
    };
    parsed.map_err(|error| format!("{error}; give a time such as 300ms, 5s or 2m"))
}

/// `key:value`.
///
/// # Errors
/// With a sentence, for anything else.
pub fn parse_metadata(text: &str) -> Result<(String, String), String> {
    match text.split_once(':') {
        Some((key, value)) if !key.trim().is_empty() => {
            Ok((key.trim().to_owned(), value.trim_start().to_owned()))
        }
        _ => Err("metadata is KEY:VALUE".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_people_write_them() {
        let of = |text| parse_duration(text).map_err(|_| ());
        assert_eq!(of("300ms"), Ok(Duration::from_millis(300)));
        assert_eq!(of("1.5"), Ok(Duration::from_millis(1500)));
        assert_eq!(of("2m"), Ok(Duration::from_secs(120)));
        assert_eq!(of("0"), Ok(Duration::ZERO));
        assert!(of("-1").is_err() && of("soon").is_err() && of("NaN").is_err());
    }

    #[test]
    fn metadata_is_read_as_headers_are() {
        let of = |text| parse_metadata(text);
        assert_eq!(of("user: ann:b"), Ok(("user".to_owned(), "ann:b".to_owned())));
        assert!(of("user").is_err() && of(":x").is_err());
    }
}
