//! Judges what the server's defaults do to commits, triggers and policies. Pure. R2, F11.

use super::facts::Facts;
use super::finding::Finding;
use super::service;

pub(super) fn judge(facts: &Facts) -> Vec<Finding> {
    let judges = [fsync, full_page_writes, synchronous_commit, replication_role, row_security];
    judges.iter().filter_map(|judge| judge(facts)).collect()
}

fn fsync(facts: &Facts) -> Option<Finding> {
    let name = "fsync";
    let setting = facts.settings.get(name)?;
    let needed = "on: what a client has seen must be on disk";
    if setting.value == "on" {
        return Some(Finding::ok(name, "on", needed));
    }
    let found = "off: when the machine crashes, commits that clients have seen can be gone, or the database is corrupt";
    Some(Finding::failure(name, found, needed, vec![service::set(facts, setting, name, "on")]))
}

fn full_page_writes(facts: &Facts) -> Option<Finding> {
    let name = "full_page_writes";
    let setting = facts.settings.get(name)?;
    let needed = "on, unless the file system never tears a page";
    if setting.value == "on" {
        return Some(Finding::ok(name, "on", needed));
    }
    let found = "off: a page that was half written when the machine crashed stays broken";
    Some(Finding::warning(name, found, needed, vec![service::set(facts, setting, name, "on")]))
}

/// Harmless: what is not flushed is not sent to the worker either.
fn synchronous_commit(facts: &Facts) -> Option<Finding> {
    let name = "synchronous_commit";
    let setting = facts.settings.get(name)?;
    let needed = "any value: the worker and pushes set on for their own commits";
    let found = match setting.value.as_str() {
        "off" => {
            "off: the application's last commits can be gone after a crash; no client has seen them, because only flushed WAL is sent"
        }
        other => other,
    };
    Some(Finding::ok(name, found, needed))
}

fn replication_role(facts: &Facts) -> Option<Finding> {
    let name = "session_replication_role";
    let setting = facts.settings.get(name)?;
    let needed = "origin, as it comes";
    if setting.value == "origin" {
        return Some(Finding::ok(name, "origin", needed));
    }
    let found = format!(
        "{}: foreign keys and ordinary triggers do not fire in sessions of this role here; Tidegate's own do",
        setting.value
    );
    Some(Finding::warning(name, found, needed, vec![service::set(facts, setting, name, "origin")]))
}

fn row_security(facts: &Facts) -> Option<Finding> {
    let name = "row_security";
    let setting = facts.settings.get(name)?;
    let needed = "on, as it comes; Tidegate sets it for its own statements";
    if setting.value == "on" {
        return Some(Finding::ok(name, "on", needed));
    }
    let found =
        "off: the application's statements fail on tables with policies, instead of seeing fewer rows";
    Some(Finding::warning(name, found, needed, vec![service::set(facts, setting, name, "on")]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::finding::Level;

    #[test]
    fn each_default_that_hurts_is_named_alone_with_its_repair() {
        assert!(judge(&Facts::good()).iter().all(|finding| finding.level == Level::Ok));
        for (name, value, level, repair) in [
            ("fsync", "off", Level::Failure, Some("alter system set fsync = 'on'")),
            ("full_page_writes", "off", Level::Warning, Some("alter system set full_page_writes = 'on'")),
            ("synchronous_commit", "off", Level::Ok, None),
            (
                "session_replication_role",
                "replica",
                Level::Warning,
                Some("alter system set session_replication_role = 'origin'"),
            ),
            ("row_security", "off", Level::Warning, Some("alter system set row_security = 'on'")),
        ] {
            for finding in judge(&Facts::good().with(name, value)) {
                if finding.name == name {
                    assert_eq!(finding.level, level, "{name}");
                    assert_eq!(finding.repair.first().map(|repair| repair.text.as_str()), repair, "{name}");
                } else {
                    assert_eq!(finding.level, Level::Ok, "{name}: {finding:?}");
                }
            }
        }
    }

    #[test]
    fn a_default_of_no_synchronous_commit_says_that_the_worker_sets_its_own() {
        let facts = Facts::good().with("synchronous_commit", "off");
        let finding = judge(&facts).into_iter().find(|finding| finding.name == "synchronous_commit");
        let finding = finding.expect("a finding");
        assert!(finding.found.starts_with("off") && finding.needed.contains("the worker"), "{finding:?}");
    }
}
