//! The arrows between the crates run one way.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

/// What each crate may use of the others. `-` in front: only its tests may.
const ARROWS: [(&str, &[&str]); 11] = [
    ("model", &[]),
    ("embedded", &[]),
    ("migrations", &["model", "embedded"]),
    ("stream", &["model"]),
    ("capture", &["stream", "migrations", "model", "-embedded"]),
    ("protocol", &["model"]),
    ("log", &["model", "-migrations", "-embedded"]),
    ("gateway", &["protocol", "log", "migrations", "model", "-embedded"]),
    ("cli", &["model", "embedded", "migrations", "stream", "capture", "protocol", "log", "gateway"]),
    // The load test speaks the protocol like a client and knows no server code.
    ("loadtest", &["protocol", "floors", "-embedded"]),
    // Floors and checker may see more: they compare the product with its own parts.
    ("floors", &["model", "embedded", "migrations", "stream"]),
];

#[derive(serde::Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(serde::Deserialize)]
struct Package {
    name: String,
    dependencies: Vec<Dependency>,
}

#[derive(serde::Deserialize)]
struct Dependency {
    name: String,
    kind: Option<String>,
    optional: bool,
}

#[test]
fn crates_depend_only_along_the_arrows() {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
        .output()
        .expect("run cargo metadata");
    assert!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    let metadata: Metadata = serde_json::from_slice(&output.stdout).expect("cargo metadata prints JSON");

    let allowed: BTreeMap<_, _> = ARROWS.into_iter().collect();
    let mut seen = BTreeSet::new();
    for package in &metadata.packages {
        let name = package.name.strip_prefix("tidegate-").expect("every crate of ours is called tidegate-…");
        let allowed =
            allowed.get(name).unwrap_or_else(|| panic!("crate {name} has no arrows: add it to the table"));
        seen.insert(name);
        for dependency in &package.dependencies {
            let Some(target) = dependency.name.strip_prefix("tidegate-") else { continue };
            let test_only = dependency.kind.as_deref() == Some("dev") || dependency.optional;
            let fits =
                allowed.contains(&target) || (test_only && allowed.contains(&format!("-{target}").as_str()));
            assert!(fits || target == name, "{name} -> {target} ({:?}) is not an arrow", dependency.kind);
        }
    }
    assert_eq!(seen, allowed.keys().copied().collect(), "the table names exactly the crates that exist");
}
