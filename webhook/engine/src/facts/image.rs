//! Takes an image reference apart, writing out what Docker Hub's short names leave out.
//!
//! Nothing is refused here: what is no valid reference never starts, and its parts match no allowed registry.

use super::Image;

const DOCKER_HUB: &str = "docker.io";

impl Image {
    /// Reads `[registry/]repository[:tag][@digest]` by the rules of the Docker client, which Kubernetes follows.
    pub fn parse(reference: &str) -> Self {
        if reference.is_empty() {
            return Self::default();
        }
        let (name, digest) = split_last(reference, '@');
        let (name, tag) = match name.rsplit_once(':') {
            // A colon before the last slash belongs to a port.
            Some((name, tag)) if !tag.contains('/') => (name, Some(tag)),
            Some(_) | None => (name, None),
        };
        let (registry, repository) = registry_and_repository(name);
        Self { registry, repository, tag: tag.map(str::to_owned), digest: digest.map(str::to_owned) }
    }
}

fn split_last(text: &str, separator: char) -> (&str, Option<&str>) {
    text.rsplit_once(separator).map_or((text, None), |(before, after)| (before, Some(after)))
}

/// The first part is a registry only if it looks like a host; host names know no case.
fn registry_and_repository(name: &str) -> (String, String) {
    let host = name.split_once('/').filter(|(first, _)| {
        first.contains(['.', ':']) || *first == "localhost" || first.chars().any(char::is_uppercase)
    });
    let (registry, repository) = match host {
        Some((registry, repository)) => (registry.to_ascii_lowercase(), repository),
        None => (DOCKER_HUB.to_owned(), name),
    };
    let registry = if registry == "index.docker.io" { DOCKER_HUB.to_owned() } else { registry };
    let repository = if registry == DOCKER_HUB && !repository.contains('/') {
        format!("library/{repository}")
    } else {
        repository.to_owned()
    };
    (registry, repository)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references() {
        let table = [
            ("busybox", "docker.io", "library/busybox", None, None),
            ("busybox:1.36", "docker.io", "library/busybox", Some("1.36"), None),
            ("docker.io/busybox", "docker.io", "library/busybox", None, None),
            ("index.docker.io/library/busybox", "docker.io", "library/busybox", None, None),
            ("vllm/vllm-openai:v0.8.5", "docker.io", "vllm/vllm-openai", Some("v0.8.5"), None),
            ("localhost/x", "localhost", "x", None, None),
            ("localhost:5000/x:y", "localhost:5000", "x", Some("y"), None),
            ("registry:5000/team/x", "registry:5000", "team/x", None, None),
            ("[::1]:5000/x", "[::1]:5000", "x", None, None),
            ("Registry.Corp/Team/x:T", "registry.corp", "Team/x", Some("T"), None),
            ("public.ecr.aws/a/b/c@sha256:00", "public.ecr.aws", "a/b/c", None, Some("sha256:00")),
            ("gcr.io/x:1@sha256:00", "gcr.io", "x", Some("1"), Some("sha256:00")),
            ("registry.corp.example.net/x", "registry.corp.example.net", "x", None, None),
            ("", "", "", None, None),
        ];
        for (reference, registry, repository, tag, digest) in table {
            let expected = Image {
                registry: registry.to_owned(),
                repository: repository.to_owned(),
                tag: tag.map(str::to_owned),
                digest: digest.map(str::to_owned),
            };
            assert_eq!(Image::parse(reference), expected, "{reference}");
        }
    }
}
