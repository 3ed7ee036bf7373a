//! The scenarios of F7 and F9, a file for each kind of thing that a transaction may do.

mod conflicts;
mod deferred;
mod leftovers;
mod prepared;
mod referential;
mod rewrites;
mod savepoints;
mod sessions;
mod statements;
mod triggers;
mod views;

use crate::scenario::{Scenario, play};
use tidegate_embedded::pg_test;
use tidegate_embedded::testing::TestServer;

/// Three rows of `item`.
const ROWS: &str = "insert into item (id, title) select g, 't' from generate_series(1, 3) g";

macro_rules! groups {
    ($($group:ident: $test:ident)*) => {
        $(pg_test!(
            BriefSlots,
            async fn $test(server: TestServer) {
                play(&server, $group::scenarios()).await;
            }
        );)*

        /// All of them, by group.
        fn groups() -> Vec<(&'static str, Vec<Scenario>)> {
            vec![("prepared", prepared::scenarios()), $((stringify!($group), $group::scenarios())),*]
        }
    };
}

groups! {
    statements: f7_f9_statements_of_every_kind_are_fenced_in_the_order_of_their_rows
    conflicts: f7_f9_conflicts_merges_and_common_table_expressions_are_in_order
    savepoints: f3_f7_f9_savepoints_and_exception_blocks_are_in_order
    triggers: f7_f9_tx05_triggers_around_ours_are_in_order_or_refused
    deferred: f7_f9_tx05_what_fires_later_is_in_order
    referential: f7_f9_referential_actions_are_in_order_and_never_refused
    views: f7_f9_views_rules_and_instead_of_triggers_are_in_order
    rewrites: f7_f9_rewrites_within_and_between_transactions_are_in_order
    leftovers: f9_tx03_whatever_was_left_behind_never_fails_a_write
    sessions: f6_f7_concurrent_sessions_and_every_isolation_level_are_in_order
}

pg_test!(
    Private { "max_prepared_transactions" = "8" },
    async fn f3_f7_f9_prepared_transactions_are_in_order(server: TestServer) {
        play(&server, prepared::scenarios()).await;
    }
);

#[test]
fn f9_the_table_holds_more_than_the_38_scenarios_that_the_design_was_found_by() {
    let groups = groups();
    let mut names: Vec<&str> = groups.iter().flat_map(|(_, group)| group.iter().map(|s| s.name)).collect();
    for (group, scenarios) in &groups {
        println!("{group}: {}", scenarios.len());
    }
    println!("{} scenarios", names.len());
    assert!(names.len() >= 38);
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count, "every line of the report has a name of its own");
}
