//! What to do about a transaction that blocks the stream, by the class of its failure (Q5). Pure. The classes are capture's, which this
//! crate does not know: a test over both holds that none lacks its advice.

/// What a decoded stream that contradicts the triggers calls for.
const BYPASSED: &str = "A write went past the triggers, or a message was forged: `tidegate check` names triggers that are not as installed, and who may emit messages. No retry can tell what was meant: start the stream anew with `tidegate reset --reason …`.";
/// What the log says otherwise than the projection.
const PROJECTION: &str = "The projected state differs from what the log says: the database was restored in part, or our tables were changed. Put that right and run `tidegate poison retry`, or start the stream anew with `tidegate reset --reason …`.";
/// What names a change of the table that the log has already passed.
const TABLE: &str = "No retry can clear it: put the table back as it was registered, and start the stream anew with `tidegate reset --reason …`. Where it cannot be put back (dropped and created anew), leave and begin anew: tidegate uninstall, migrate, apply.";
/// What a newer program may read.
const PROTOCOL: &str = "The server sent what this program does not understand: run `tidegate poison retry` with the newest version of Tidegate, and look at the server's log.";
const REGISTRY: &str = "The registrations in the schema tidegate were changed or restored in part. Put that right and run `tidegate poison retry`, or start the stream anew with `tidegate reset --reason …`.";

/// What an operator does about this class; `None` for one that is not known here, as of a newer worker.
pub fn poison_advice(class: &str) -> Option<&'static str> {
    Some(match class {
        "frame_malformed" | "message_unexpected" | "relation_undescribed" => PROTOCOL,
        "relation_replaced"
        | "relation_renamed"
        | "column_missing"
        | "column_type_changed"
        | "replica_identity_changed"
        | "primary_key_changed" => TABLE,
        "truncate" => {
            "Somebody disabled the guard and truncated the table; what is gone cannot be told from the log. `tidegate migrate --force` puts the guard back; then start the stream anew with `tidegate reset --reason …`."
        }
        "key_changed" => {
            "Somebody disabled the guard and changed a key. `tidegate migrate --force` puts the guard back; then start the stream anew with `tidegate reset --reason …`."
        }
        "value_malformed" | "value_missing" | "layout_changed" => {
            "A row is not of the registered shape: `tidegate check` compares the table with its registration. Repair that and run `tidegate poison retry`, or start the stream anew with `tidegate reset --reason …`."
        }
        "registry_message_malformed" | "registry_generation_missing" | "registry_generation_backwards" => {
            REGISTRY
        }
        "marker_malformed" => {
            "A message of ours was forged or cut short: revoke the right to emit messages, as `tidegate check` says, and start the stream anew with `tidegate reset --reason …`."
        }
        "fence_malformed"
        | "fence_relation_mismatch"
        | "fence_missing"
        | "fence_without_row"
        | "fence_operation_mismatch"
        | "fence_key_mismatch"
        | "fence_duplicate"
        | "fence_version_reused" => BYPASSED,
        "manifest_mismatch"
        | "insert_on_existing"
        | "update_on_missing"
        | "delete_on_missing"
        | "projection_inconsistent"
        | "write_fence_mismatch" => PROJECTION,
        "transaction_too_large" => {
            "Start `tidegate capture` with a larger --transaction-events-max or --transaction-bytes-max, and run `tidegate poison retry`."
        }
        "message_too_large" => {
            "Start `tidegate capture` with a larger --message-bytes-max, and memory for it, and run `tidegate poison retry`."
        }
        "stream_unreadable" => {
            "`tidegate poison show` says what the server refused. Repair it, as where the publication was missing, and run `tidegate poison retry`. What was written while the publication was missing can never be decoded: then start the stream anew with `tidegate reset --reason …`."
        }
        "relation_drifted" => {
            "Undo the change of the table: `tidegate check` gives the statements. Then run `tidegate poison retry`, which compares again. Where it cannot be undone, as of a table dropped and created anew, leave and begin anew: tidegate uninstall, migrate, apply."
        }
        "database_refused" => {
            "`tidegate poison show` gives the SQLSTATE. Repair what the database refused, and run `tidegate poison retry`."
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_class_has_no_advice_of_its_own() {
        assert_eq!(poison_advice("of_a_newer_worker"), None);
        assert!(poison_advice("truncate").is_some());
    }
}
