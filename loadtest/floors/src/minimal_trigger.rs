//! The baseline of fences: a minimal trigger, and what it costs that no trigger at all does not.

/// What puts the minimal trigger on `table`, which must have a key `id bigint`. The name is the load test's own, never input.
pub fn sql(table: &str) -> String {
    include_str!("minimal_trigger.sql").replace("{table}", table)
}
