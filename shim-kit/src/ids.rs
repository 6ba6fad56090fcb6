//! Ids of containers, execs, sandboxes and namespaces: what containerd allows, so that one is safe as a part of a path.

use ttrpc::Status;

/// Checks an id.
///
/// # Errors
/// INVALID_ARGUMENT that says what is allowed.
pub fn check(what: &str, id: &str) -> Result<(), Status> {
    if ttrpc_containerd::is_identifier(id) {
        return Ok(());
    }
    let allowed = "letters and digits in groups that one of . _ - separates, 76 bytes at most";
    Err(Status::invalid_argument(format!("the id of the {what}, {id:?}, has to be {allowed}")))
}
