//! What is owed: rules and cases without a test of their name, each with a sentence and the piece that brings it (`OWED.toml`). The
//! list is exact: what has a test is not owed, and what has none is.

use crate::ids::{Id, cases, leading, rules};
use crate::names;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The list, as OWED.toml has it.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    #[serde(default)]
    owed: Vec<Entry>,
}

/// One thing owed.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    /// The rule or case.
    id: String,
    /// What is owed, in one sentence.
    what: String,
    /// The piece of the product that brings it.
    by: String,
    /// Where only a part is owed: how the name of the test begins that will show it.
    test: Option<String>,
}

/// Everything in which list, documents and tests do not agree; empty: they do.
fn disagreements(declared: &BTreeSet<Id>, names: &[String], list: &List) -> Vec<String> {
    let mut shown: BTreeMap<Id, &str> = BTreeMap::new();
    let mut found = Vec::new();
    for name in names {
        for id in leading(name) {
            if !declared.contains(&id) {
                found.push(format!("{id}: no rule or case; a test carries it: {name}"));
            }
            shown.entry(id).or_insert(name);
        }
    }
    let mut owed = BTreeSet::new();
    let mut parts = BTreeSet::new();
    for entry in &list.owed {
        let text = &entry.id;
        let Some(id) = Id::parse(text).filter(|id| declared.contains(id)) else {
            found.push(format!("{text}: owed, and no rule or case"));
            continue;
        };
        if entry.by.is_empty() || !entry.what.ends_with('.') {
            found.push(format!("{id}: say in a sentence what is owed, and what brings it"));
        }
        match (&entry.test, shown.get(&id)) {
            (None, Some(name)) => found.push(format!("{id}: owed, and there is a test: {name}")),
            (None, None) if !owed.insert(id.clone()) => found.push(format!("{id}: owed twice")),
            (None, None) => {}
            (Some(test), _) if !leading(test).contains(&id) => {
                found.push(format!("{id}: the test of what is owed does not carry it: {test}"));
            }
            (Some(test), _) if names.iter().any(|name| name.starts_with(test.as_str())) => {
                found.push(format!("{id}: a part is owed, and its test is there: {test}"));
            }
            (Some(test), _) if !parts.insert(test) => {
                found.push(format!("{id}: one part is owed twice: {test}"))
            }
            (Some(_), Some(_)) => {}
            (Some(_), None) => found.push(format!("{id}: a part is owed, and nothing shows the rest")),
        }
    }
    let silent = declared.iter().filter(|id| !shown.contains_key(id) && !owed.contains(id));
    found.extend(silent.map(|id| format!("{id}: neither a test nor owed")));
    found
}

/// A document beside this crate's sources.
fn document(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn every_rule_and_case_has_a_test_or_is_owed() {
    let mut declared = rules(&document("CONTRACT.md"));
    declared.extend(cases(&document("CASES.md")));
    assert!(declared.len() > 120, "the documents have another form: {} ids found", declared.len());
    let names = names::of_workspace(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."));
    let list: List = toml::from_str(&document("OWED.toml")).expect("OWED.toml");
    let found = disagreements(&declared, &names, &list);
    assert!(found.is_empty(), "migrations/model/OWED.toml is not exact:\n{}", found.join("\n"));
}

#[cfg(test)]
mod small {
    use super::*;

    fn ids(texts: &[&str]) -> BTreeSet<Id> {
        texts.iter().map(|text| Id::parse(text).expect("an id")).collect()
    }

    fn check(declared: &[&str], names: &[&str], list: &str) -> Vec<String> {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let list = toml::from_str(list).expect("a list");
        disagreements(&ids(declared), &names, &list)
    }

    const S4: &str = "[[owed]]\nid = 'S4'\nwhat = 'All of it.'\nby = 'append log'\n";
    const PART: &str =
        "[[owed]]\nid = 'DT-02'\nwhat = 'A reload.'\nby = 'persistent store'\ntest = 'dt02_a_reload'\n";

    #[test]
    fn what_is_tested_and_what_is_owed_is_all_there_is() {
        assert_eq!(check(&["A7", "S4"], &["a7_x"], S4), [""; 0]);
        assert_eq!(check(&["A7", "S4", "DT-02"], &["a7_dt02_x", "y"], &[S4, PART].concat()), [""; 0]);
    }

    #[test]
    fn a_rule_with_neither_is_named() {
        assert_eq!(check(&["A7", "S4"], &["x_a7"], S4), ["A7: neither a test nor owed"]);
    }

    #[test]
    fn an_entry_ends_with_its_test() {
        assert_eq!(check(&["S4"], &["s4 a title"], S4), ["S4: owed, and there is a test: s4 a title"]);
        let there = "DT-02: a part is owed, and its test is there: dt02_a_reload";
        assert_eq!(check(&["DT-02"], &["dt02_x", "dt02_a_reload_of_the_store"], PART), [there]);
    }

    #[test]
    fn a_part_is_owed_only_where_something_shows_the_rest() {
        let found = check(&["DT-02"], &[], PART);
        assert_eq!(
            found,
            ["DT-02: a part is owed, and nothing shows the rest", "DT-02: neither a test nor owed"]
        );
    }

    #[test]
    fn entries_and_names_that_mean_nothing_are_named() {
        let unknown = S4.replace("S4", "S9");
        assert_eq!(check(&[], &[], &unknown), ["S9: owed, and no rule or case"]);
        assert_eq!(check(&["S4"], &[], &[S4, S4].concat()), ["S4: owed twice"]);
        assert_eq!(check(&["S4"], &["a7_x"], S4), ["A7: no rule or case; a test carries it: a7_x"]);
        let elsewhere = PART.replace("'dt02_a_reload'", "'a_reload'");
        let found = check(&["DT-02"], &["dt02_x"], &elsewhere);
        assert_eq!(found, ["DT-02: the test of what is owed does not carry it: a_reload"]);
        let vague = S4.replace("All of it.", "All of it");
        assert_eq!(check(&["S4"], &[], &vague), ["S4: say in a sentence what is owed, and what brings it"]);
    }
}
