//! What a file of definitions does not say, but its author should hear: grants that lead nowhere, tables that nobody can see, and
//! registrations that the file has no more. Nothing of it is refused: files may be applied one after the other.

use crate::definition::{ApplyError, Definitions};
use serde::Serialize;
use sqlx::postgres::PgPool;
use std::collections::BTreeSet;

/// Remarks on a file that can be applied.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Notices {
    /// Sentences; names of tables and scopes only.
    pub warnings: Vec<String>,
    /// What is registered and not in the file: it stays registered.
    pub kept: Vec<Kept>,
}

/// One registration that the file lacks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, sqlx::FromRow)]
pub struct Kept {
    /// `table` or `grant`.
    pub kind: String,
    /// Table name, or scope template with the table that the grant reads.
    pub name: String,
    /// Of a table, the templates of its scopes.
    #[serde(skip)]
    scopes: Vec<String>,
}

/// What is to be said about a file whose definitions are all right. Reads only; the same before and after applying it.
///
/// # Errors
/// [`ApplyError::Database`], also when a definition is one that would be refused.
pub async fn notices(pool: &PgPool, definitions: &Definitions) -> Result<Notices, ApplyError> {
    let kept: Vec<Kept> = sqlx::query_as(include_str!("kept.sql"))
        .bind(definitions.to_json())
        .fetch_all(pool)
        .await
        .map_err(|source| ApplyError::Database { action: "look for what the file lacks", source })?;
    Ok(Notices { warnings: warnings(definitions, &kept), kept })
}

fn warnings(definitions: &Definitions, kept: &[Kept]) -> Vec<String> {
    let in_file = definitions.tables.iter().flat_map(|table| &table.scopes).map(|scope| scope.name.as_str());
    let scopes: BTreeSet<&str> =
        in_file.chain(kept.iter().flat_map(|kept| &kept.scopes).map(String::as_str)).collect();
    let unseen = definitions
        .tables
        .iter()
        .filter(|table| table.scopes.is_empty())
        .map(|table| format!("table {} has no scope: no client can ever see its rows", table.name));
    let templates: Vec<Vec<Part>> = scopes.iter().map(|scope| parts(scope)).collect();
    let astray = definitions
        .grants
        .iter()
        .filter(|grant| !templates.iter().any(|scope| meet(&parts(&grant.scope), scope)))
        .map(|grant| {
            let known = scopes.iter().map(|scope| format!("\"{scope}\"")).collect::<Vec<_>>().join(", ");
            let known =
                if known.is_empty() { "there are none".to_owned() } else { format!("there are {known}") };
            format!("grant \"{}\" fits the scopes of no registered table ({known})", grant.scope)
        });
    unseen.chain(astray).collect()
}

/// A piece of a template.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Character(char),
    /// A placeholder: any number of characters that a percent-encoded value may hold.
    Value,
}

fn parts(template: &str) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut inside = false;
    for character in template.chars() {
        match character {
            '{' => {
                inside = true;
                parts.push(Part::Value);
            }
            '}' => inside = false,
            other if !inside => parts.push(Part::Character(other)),
            _ => {}
        }
    }
    parts
}

/// What encodeURIComponent leaves, and its percent sign.
fn in_value(part: Part) -> bool {
    match part {
        Part::Character(c) => c.is_ascii_alphanumeric() || "-_.!~*'()%".contains(c),
        Part::Value => true,
    }
}

/// Whether some name fits both templates. From the ends to the beginnings, each pair of places once.
fn meet(a: &[Part], b: &[Part]) -> bool {
    let mut below = vec![false; b.len() + 1];
    for i in (0..=a.len()).rev() {
        let mut row = vec![false; b.len() + 1];
        for j in (0..=b.len()).rev() {
            row[j] = match (a.get(i), b.get(j)) {
                (None, None) => true,
                (Some(Part::Character(x)), Some(Part::Character(y))) => x == y && below[j + 1],
                // The placeholder ends here, or takes in what the other has.
                (Some(Part::Value), other)
                    if below[j] || other.is_some_and(|o| in_value(*o) && row[j + 1]) =>
                {
                    true
                }
                (other, Some(Part::Value)) => row[j + 1] || other.is_some_and(|o| in_value(*o) && below[j]),
                _ => false,
            };
        }
        below = row;
    }
    below[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_meet_when_some_name_fits_both() {
        for (a, b, expected) in [
            ("board:{board_member.board_id}", "board:{board_id}", true),
            ("board:7", "board:{board_id}", true),
            ("bord:{board_id}", "board:{board_id}", false),
            ("board:{id}", "board:{id}/{list}", false),
            ("board:{id}/{list}", "board:{id}/open", true),
            ("news", "news", true),
            ("news", "new", false),
            ("{subject.id}", "{owner}", true),
            ("{a}:{b}", "x:{b}", true),
            ("{a}", "a:b", false),
        ] {
            assert_eq!(meet(&parts(a), &parts(b)), expected, "{a} {b}");
            assert_eq!(meet(&parts(b), &parts(a)), expected, "{b} {a}");
        }
    }
}
