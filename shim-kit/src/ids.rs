//! Ids of containers, execs, sandboxes and namespaces: what containerd allows, so that one is safe as a part of a path.

use ttrpc::Status;

/// containerd's limit, in bytes.
const MAX_LEN: usize = 76;

/// Checks an id: letters and digits, in groups that `.`, `_` or `-` separate.
///
/// # Errors
/// INVALID_ARGUMENT that says what is wrong.
pub fn check(what: &str, id: &str) -> Result<(), Status> {
    let is_group =
        |group: &str| !group.is_empty() && group.bytes().all(|b| b.is_ascii_alphanumeric());
    let wrong = match id.len() {
        0 => "is empty".to_owned(),
        length if length > MAX_LEN => {
            format!("has {length} bytes, and containerd allows {MAX_LEN}")
        }
        _ if !id.split(['.', '_', '-']).all(is_group) => {
            format!(
                "{id:?} is not made of letters and digits in groups that one of . _ - separates"
            )
        }
        _ => return Ok(()),
    };
    Err(Status::invalid_argument(format!("the id of the {what} {wrong}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_those_that_containerd_allows() {
        for good in ["c1", "k8s.io", "a_b-c.d", "0", &"x".repeat(76)] {
            check("container", good).unwrap();
        }
        for wrong in [
            "",
            ".",
            "..",
            "../../x",
            "a/b",
            "a..b",
            "-a",
            "a-",
            "a b",
            "é",
            "a\0",
            &"x".repeat(77),
        ] {
            let status = check("exec", wrong).unwrap_err();
            assert_eq!(status.code(), ttrpc::Code::InvalidArgument, "{wrong:?}");
            assert!(status.message().starts_with("the id of the exec "), "{status}");
        }
    }
}
