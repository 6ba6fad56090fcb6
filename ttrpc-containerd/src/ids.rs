//! Identifiers: namespaces, and ids of containers, execs and sandboxes.

/// containerd's limit, in bytes.
const MAX_LEN: usize = 76;

/// Returns whether containerd allows this as an identifier.
///
/// Identifiers have letters and digits in groups that one of `.`, `_`, `-` separates, 76 bytes at most. Such a name is
/// safe as a part of a path.
pub fn is_identifier(text: &str) -> bool {
    let is_group =
        |group: &str| !group.is_empty() && group.bytes().all(|b| b.is_ascii_alphanumeric());
    text.len() <= MAX_LEN && text.split(['.', '_', '-']).all(is_group)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_are_those_that_containerd_allows() {
        for good in ["c1", "k8s.io", "a_b-c.d", "0", &"x".repeat(76)] {
            assert!(is_identifier(good), "{good}");
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
            assert!(!is_identifier(wrong), "{wrong:?}");
        }
    }
}
