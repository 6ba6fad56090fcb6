//! What authors ask of pods and containers.

use crate::proto::{Container, PodSandbox};

impl PodSandbox {
    /// Makes a pod with this id and name, for tests.
    pub fn named(name: impl Into<String>) -> Self {
        let name = name.into();
        PodSandbox { id: name.clone(), name, ..PodSandbox::default() }
    }

    /// Adds an annotation, for tests.
    #[must_use]
    pub fn with_annotation(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.annotations.insert(key.into(), value.into());
        self
    }

    /// Returns an annotation of the pod.
    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.annotations.get(key).map(String::as_str)
    }

    /// Returns the pod's annotation for one of its containers: the first of `KEY/container.NAME`, `KEY/pod` and `KEY`.
    pub fn annotation_for(&self, container: &str, key: &str) -> Option<&str> {
        let of_container = self.annotation(&format!("{key}/container.{container}"));
        of_container
            .or_else(|| self.annotation(&format!("{key}/pod")))
            .or_else(|| self.annotation(key))
    }

    /// Returns a label of the pod.
    pub fn label(&self, key: &str) -> Option<&str> {
        self.labels.get(key).map(String::as_str)
    }
}

impl Container {
    /// Makes a container with this id and name, for tests.
    pub fn named(name: impl Into<String>) -> Self {
        let name = name.into();
        Container { id: name.clone(), name, ..Container::default() }
    }

    /// Adds an annotation, for tests.
    #[must_use]
    pub fn with_annotation(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.annotations.insert(key.into(), value.into());
        self
    }

    /// Returns an annotation of the container.
    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.annotations.get(key).map(String::as_str)
    }

    /// Returns a label of the container.
    pub fn label(&self, key: &str) -> Option<&str> {
        self.labels.get(key).map(String::as_str)
    }

    /// Returns an environment variable of the container.
    pub fn env_value(&self, key: &str) -> Option<&str> {
        self.env.iter().find_map(|pair| pair.strip_prefix(key)?.strip_prefix('='))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_annotation_for_a_container_precedes_that_of_the_pod() {
        let mut pod = PodSandbox::named("p").with_annotation("k", "plain");
        assert_eq!(pod.annotation_for("c", "k"), Some("plain"));
        pod = pod.with_annotation("k/pod", "pod");
        assert_eq!(pod.annotation_for("c", "k"), Some("pod"));
        pod = pod.with_annotation("k/container.c", "container");
        assert_eq!(pod.annotation_for("c", "k"), Some("container"));
        assert_eq!(pod.annotation_for("d", "k"), Some("pod"));
        assert_eq!(pod.annotation_for("d", "x"), None);
    }

    #[test]
    fn an_environment_variable_is_found_by_its_whole_name() {
        let container =
            Container { env: vec!["AB=1".into(), "A=2=3".into()], ..Container::default() };
        assert_eq!(container.env_value("A"), Some("2=3"));
        assert_eq!(container.env_value("B"), None);
    }
}
