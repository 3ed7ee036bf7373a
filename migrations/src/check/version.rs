//! Which versions of PostgreSQL can be used, and from which minor version on. From the release notes of PostgreSQL.

use super::finding::{Finding, Repair};

/// The oldest major version whose SQL and protocol suffice.
const MAJOR_MIN: i32 = 15;

struct Minors {
    major: i32,
    /// Older ones lose rows or stop: a failure.
    needed: i32,
    /// Older ones may spoil a new slot: a warning.
    advised: i32,
}

/// Each line is one set of releases:
/// - 15.13, 16.9, 17.5 (2025-05-08): after DDL that takes no strong lock, ALTER PUBLICATION … ADD TABLE among it, running transactions
///   were decoded with an old catalogue, so that rows were lost. 15.14, 16.10, 17.6 (2025-08-14): that fix made the messages behind it
///   grow exponentially, until decoding ran out of memory; WAL that a slot needs could go during a checkpoint; a confirmed position
///   could move backwards. 18.0 has all of it.
/// - 15.16, 16.12, 17.8, 18.2 (2026-02-12): a checkpoint at the wrong moment invalidated a slot that was just created, or its snapshot
///   could not be built.
const MINORS: [Minors; 4] = [
    Minors { major: 15, needed: 14, advised: 16 },
    Minors { major: 16, needed: 10, advised: 12 },
    Minors { major: 17, needed: 6, advised: 8 },
    Minors { major: 18, needed: 0, advised: 2 },
];

const NAME: &str = "version";

/// Judges a `server_version_num` and a `server_version`.
pub(super) fn of(number: i32, shown: &str) -> Finding {
    let (major, minor) = (number / 10_000, number % 10_000);
    // `15.18 (Debian 15.18-0+deb12u1)`: what the packager adds says nothing here.
    let release = shown.split(' ').next().unwrap_or(shown);
    let found = format!("PostgreSQL {release}");
    let newest = MINORS[MINORS.len() - 1].major;
    let range = format!("PostgreSQL {MAJOR_MIN} to {newest}");
    if major < MAJOR_MIN {
        let upgrade = format!("Upgrade the server to {range}.");
        return Finding::failure(NAME, format!("{found} is too old"), range, vec![Repair::act(upgrade)]);
    }
    let Some(minors) = MINORS.iter().find(|minors| minors.major == major) else {
        let act = "Use a newer Tidegate, if there is one, or an older server.";
        let found = format!(
            "{found} is newer than this program: nothing was tested with it, and its worker refuses a first start there"
        );
        return Finding::failure(NAME, found, range, vec![Repair::act(act)]);
    };
    if ["devel", "alpha", "beta", "rc"].iter().any(|mark| release.contains(mark)) {
        let act = vec![Repair::act(format!("Install a release of PostgreSQL {major}."))];
        return Finding::warning(NAME, format!("{found} is not a release"), range, act);
    }
    let needed = format!("{major}.{} or newer", minors.advised.max(minors.needed));
    let update = || {
        let minor = minors.advised.max(minors.needed);
        vec![
            Repair::act(format!(
                "Install the newest minor version of PostgreSQL {major}, at least {major}.{minor}."
            ))
            .then("restart PostgreSQL"),
        ]
    };
    if minor < minors.needed {
        let found = format!(
            "{found} can lose rows from the log after a change of the publication, or stop with a memory error, or remove WAL that a slot needs"
        );
        return Finding::failure(NAME, found, needed, update());
    }
    if minor < minors.advised {
        let found =
            format!("{found} can invalidate a slot at its creation, so that a first start or a reset fails");
        return Finding::warning(NAME, found, needed, update());
    }
    Finding::ok(NAME, found, needed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::finding::Level::{self, *};

    #[test]
    fn a_minor_version_with_a_known_fault_is_named() {
        let cases: [(i32, &str, Level, &str); 16] = [
            (90_624, "9.6.24", Failure, "too old"),
            (140_022, "14.22", Failure, "too old"),
            (150_012, "15.12", Failure, "lose rows"),
            (150_013, "15.13", Failure, "memory error"),
            (150_014, "15.14", Warning, "invalidate a slot"),
            (150_016, "15.16", Ok, "PostgreSQL 15.16"),
            (150_018, "15.18 (Debian 15.18-0+deb12u1)", Ok, "PostgreSQL 15.18"),
            (160_009, "16.9", Failure, "lose rows"),
            (160_010, "16.10", Warning, "invalidate a slot"),
            (160_012, "16.12", Ok, ""),
            (170_005, "17.5", Failure, "lose rows"),
            (170_008, "17.8", Ok, ""),
            (180_000, "18.0", Warning, "invalidate a slot"),
            (180_000, "18beta2", Warning, "not a release"),
            (180_006, "18.6", Ok, ""),
            (190_001, "19.1", Failure, "newer than this program"),
        ];
        for (number, shown, level, part) in cases {
            let finding = of(number, shown);
            assert_eq!(finding.level, level, "{shown}: {finding:?}");
            assert!(finding.found.contains(part), "{shown}: {}", finding.found);
            assert_eq!(finding.repair.is_empty(), level == Ok, "{shown}");
        }
    }
}
