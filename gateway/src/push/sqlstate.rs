//! Which SQLSTATEs decide nothing. A closed list, in this one place: everything else that a mutation's statement raises is a
//! refusal, a durable outcome (V3). Pure.

/// `lock_timeout`, or NOWAIT.
pub(super) const LOCK_TIMEOUT: &str = "55P03";

/// SQLSTATEs, or their beginnings, with which a push fails as a whole and may be sent again.
const TRANSIENT: [&str; 15] = [
    "08",    // connection
    "25",    // transaction state: a read-only standby, a session ended while idle
    "40001", // serialization failure
    "40003", // completion unknown
    "40P01", // deadlock
    "53",    // out of memory, disk or connections
    "55006", // object in use
    LOCK_TIMEOUT,
    "57014", // statement timeout
    "57P",   // shutdown, crash, dropped database
    "58",    // I/O error
    "XX",    // PostgreSQL's own faults say nothing about the mutation
    "TG101", // a registered table was replaced
    "TG102", // a write was not fenced: it would never come round
    "TG103", // the role of pushes lacks rights on our schema
];

/// Whether the failure says nothing about the mutation.
pub(super) fn is_transient(sqlstate: &str) -> bool {
    TRANSIENT.iter().any(|prefix| sqlstate.starts_with(prefix))
}

/// The same list as a regular expression, for the exception handler of `tidegate.push`.
pub(super) fn transient_pattern() -> String {
    format!("^({})", TRANSIENT.join("|"))
}

/// Whether running the same again at once, by itself, is worth it.
pub(super) fn worth_repeating(sqlstate: &str) -> bool {
    matches!(sqlstate, "40001" | "40P01" | "57P01" | "57P02" | "57P03" | "57P05")
        || sqlstate.starts_with("08")
}

/// Whether a commit may fail with it because of what the mutations did: a deferred constraint or trigger.
pub(super) fn may_refuse_commit(sqlstate: &str) -> bool {
    sqlstate.starts_with("23") || sqlstate.starts_with("P0") || sqlstate.starts_with("27")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn v3_refusals_and_failures_are_told_apart() {
        for transient in ["08006", "40001", "40P01", "53300", "57014", "57P01", "25006", "XX000", "TG102"] {
            assert!(is_transient(transient), "{transient}");
            assert!(!may_refuse_commit(transient), "{transient}");
        }
        for refusal in
            ["22P02", "23505", "23514", "27000", "42501", "42703", "P0001", "P0004", "0A000", "54000"]
        {
            assert!(!is_transient(refusal), "{refusal}");
        }
    }
}
