//! Judges what is installed: the schema's version, and whether what is registered is still as it was. Pure, but for [`read`].

use super::finding::{Finding, Repair};
use super::problem::{Part, Problem};
use crate::{Decision, GENERATION, Mine, Schema, Stamp, decide};
use sqlx::postgres::PgConnection;

/// What the schema's stamp says, compared with this program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Nothing is installed.
    Missing,
    /// The stamp may not be read: the right that is lacking.
    Unreadable,
    /// Of an older version, or a load that was cut short.
    Older,
    /// Of a newer version.
    Newer(i32),
    /// Exactly what this program carries.
    Current(Registered),
}

/// What is registered, and how the catalogues differ from it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Registered {
    pub(super) tables: i64,
    pub(super) relations: Vec<Problem>,
    pub(super) triggers: Vec<Problem>,
    pub(super) publication: Vec<Problem>,
}

/// What a stamp says. Pure.
pub(super) fn state_of(stamp: Option<&Stamp>) -> State {
    let schema = Schema::full();
    let mine =
        Mine { generation: schema.generation, loader: schema.loader, content_hash: schema.content_hash() };
    match stamp {
        None => State::Missing,
        Some(stamp) if stamp.newest() > GENERATION => State::Newer(stamp.newest()),
        Some(stamp) => match decide(Some(stamp), mine) {
            Decision::Skip => State::Current(Registered::default()),
            Decision::Replay(_) => State::Older,
        },
    }
}

/// Reads the differences. Only of a schema that is this program's: another one may have other functions.
pub(super) async fn read(connection: &mut PgConnection) -> Result<Registered, sqlx::Error> {
    let tables = sqlx::query_scalar("select count(*) from tidegate.relation where state <> 'removed'")
        .fetch_one(&mut *connection)
        .await?;
    let mut found = Registered { tables, ..Registered::default() };
    for part in Part::ALL {
        let problems: Vec<Problem> = sqlx::query_as(part.query()).fetch_all(&mut *connection).await?;
        *found.of_mut(part) = problems;
    }
    Ok(found)
}

impl Registered {
    fn of_mut(&mut self, part: Part) -> &mut Vec<Problem> {
        match part {
            Part::Relations => &mut self.relations,
            Part::Triggers => &mut self.triggers,
            Part::Publication => &mut self.publication,
        }
    }
}

pub(super) fn judge(state: &State, role: &str) -> Vec<Finding> {
    let name = "schema";
    let needed = format!("schema generation {GENERATION}, of this program");
    let migrate = || vec![Repair::command("tidegate migrate")];
    let registered = match state {
        State::Missing => {
            return vec![Finding::ok(name, "not installed yet; `tidegate migrate` installs it", needed)];
        }
        State::Unreadable => {
            let found = format!("role {role} may not read the schema tidegate");
            let grant = format!(
                "grant usage on schema tidegate to {role}; grant select on all tables in schema tidegate to {role}"
            );
            return vec![Finding::failure(name, found, needed, vec![Repair::sql(grant)])];
        }
        State::Older => {
            let found = "of another version, or its installation was cut short: the next start of any process installs this one's";
            return vec![Finding::warning(name, found, needed, migrate())];
        }
        State::Newer(generation) => {
            let found =
                format!("generation {generation}, of a newer program: this one refuses to work with it");
            let act = Repair::act("Use the program of that version, or restore a backup.");
            return vec![Finding::failure(name, found, needed, vec![act])];
        }
        State::Current(registered) => registered,
    };
    let mut findings = vec![Finding::ok(
        name,
        format!("generation {GENERATION}, {} tables registered", registered.tables),
        needed,
    )];
    for (name, part, problems) in [
        ("relations", Part::Relations, &registered.relations),
        ("triggers", Part::Triggers, &registered.triggers),
        ("publication", Part::Publication, &registered.publication),
    ] {
        findings.extend(of_part(name, part, problems));
    }
    findings
}

/// One finding for each table with a problem, or one that there is none.
fn of_part(name: &'static str, part: Part, problems: &[Problem]) -> Vec<Finding> {
    let needed = match part {
        Part::Relations => "each registered table as it was registered",
        Part::Triggers => "each trigger as it was installed, ENABLE ALWAYS",
        Part::Publication => "exactly the registered tables, all four operations, no filter, no column list",
    };
    if problems.is_empty() {
        let found = match part {
            Part::Relations => "as registered",
            Part::Triggers => "as installed",
            Part::Publication => "as it should be",
        };
        return vec![Finding::ok(name, found, needed)];
    }
    let mut subjects: Vec<&Option<String>> = Vec::new();
    for problem in problems {
        if !subjects.contains(&&problem.relation) {
            subjects.push(&problem.relation);
        }
    }
    let of_subject = |subject: &Option<String>| {
        let own: Vec<&Problem> = problems.iter().filter(|problem| problem.relation == *subject).collect();
        let found: Vec<&str> = own.iter().map(|problem| problem.problem.as_str()).collect();
        let mut repair: Vec<Repair> = Vec::new();
        for problem in &own {
            for step in repair_of(part, problem) {
                if !repair.contains(&step) {
                    repair.push(step);
                }
            }
        }
        repair.push(Repair::act(part.advice()));
        let finding = Finding::failure(name, found.join("; "), needed, repair);
        match subject {
            Some(subject) => finding.of(subject.as_str()),
            None => finding,
        }
    };
    subjects.into_iter().map(of_subject).collect()
}

/// The exact statements, for problems that statements undo. By the words of `0010_check.sql`; what is not known here has the part's
/// advice alone.
fn repair_of(part: Part, problem: &Problem) -> Vec<Repair> {
    let table = problem.relation.as_deref().unwrap_or_default();
    let said = problem.problem.as_str();
    let sql = |text: String| vec![Repair::sql(text)];
    match part {
        Part::Triggers => vec![Repair::command("tidegate migrate --force")],
        Part::Publication => match said {
            "the table is not in the publication" => {
                sql(format!("alter publication tidegate add table only {table}"))
            }
            "the publication holds a table that is not registered" => {
                sql(format!("alter publication tidegate drop table {table}"))
            }
            "the publication filters rows of the table"
            | "the publication has a column list for the table" => vec![
                Repair::sql(format!("alter publication tidegate drop table {table}")),
                Repair::sql(format!("alter publication tidegate add table only {table}")),
            ],
            "the publication tidegate does not publish insert, update, delete and truncate" => {
                sql("alter publication tidegate set (publish = 'insert, update, delete, truncate')".into())
            }
            "the publication tidegate publishes through partition roots" => {
                sql("alter publication tidegate set (publish_via_partition_root = false)".into())
            }
            "the publication tidegate is missing" => vec![Repair::command("tidegate migrate --force")],
            "the publication tidegate is for all tables" => {
                vec![Repair::sql("drop publication tidegate"), Repair::command("tidegate migrate --force")]
            }
            _ => Vec::new(),
        },
        Part::Relations => match said {
            "the table is not logged" => sql(format!("alter table {table} set logged")),
            "the replica identity is not DEFAULT" => {
                sql(format!("alter table {table} replica identity default"))
            }
            "clients may write, and row-level security is off" => {
                sql(format!("alter table {table} enable row level security"))
            }
            _ => renamed_back(table, said).map(Repair::sql).into_iter().collect(),
        },
    }
}

/// Out of `captured column a was renamed to b`.
fn renamed_back(table: &str, said: &str) -> Option<String> {
    let (before, now) = said.strip_prefix("captured column ")?.split_once(" was renamed to ")?;
    Some(format!("alter table {table} rename column {now} to {before}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LOADER;
    use crate::check::finding::Level;

    fn stamp(generation: i32) -> Stamp {
        let content_hash = Some(Schema::full().content_hash().to_vec());
        Stamp { generation, loader: LOADER.to_owned(), content_hash, replaying: None }
    }

    fn problem(relation: Option<&str>, problem: &str) -> Problem {
        Problem { relation: relation.map(str::to_owned), problem: problem.to_owned() }
    }

    #[test]
    fn a_stamp_is_compared_with_this_program() {
        assert_eq!(state_of(None), State::Missing);
        assert_eq!(state_of(Some(&stamp(GENERATION))), State::Current(Registered::default()));
        assert_eq!(state_of(Some(&stamp(GENERATION + 1))), State::Newer(GENERATION + 1));
        assert_eq!(state_of(Some(&stamp(GENERATION - 1))), State::Older);
        assert_eq!(state_of(Some(&Stamp { content_hash: None, ..stamp(GENERATION) })), State::Older);
        // A newer one that was cut short is not ours to finish.
        assert_eq!(
            state_of(Some(&Stamp { content_hash: None, ..stamp(GENERATION + 1) })),
            State::Newer(GENERATION + 1)
        );
        let begun = Stamp { content_hash: None, replaying: Some(GENERATION + 1), ..stamp(GENERATION) };
        assert_eq!(state_of(Some(&begun)), State::Newer(GENERATION + 1));
    }

    #[test]
    fn each_state_of_the_schema_says_what_comes_next() {
        for (state, level, repair) in [
            (State::Missing, Level::Ok, None),
            (State::Unreadable, Level::Failure, Some("grant usage on schema tidegate to app")),
            (State::Older, Level::Warning, Some("tidegate migrate")),
            (State::Newer(99), Level::Failure, Some("Use the program of that version")),
            (State::Current(Registered::default()), Level::Ok, None),
        ] {
            let findings = judge(&state, "app");
            assert_eq!((findings[0].name, findings[0].level), ("schema", level), "{state:?}");
            let text = findings[0].repair.first().map(|repair| repair.text.as_str());
            assert_eq!(text.is_some(), repair.is_some(), "{state:?}");
            assert!(text.unwrap_or("").starts_with(repair.unwrap_or("")), "{text:?}");
            let drift = findings.len() - 1;
            assert_eq!(drift, if matches!(state, State::Current(_)) { 3 } else { 0 }, "{state:?}");
        }
    }

    #[test]
    fn problems_of_one_table_are_one_finding_with_their_statements() {
        let registered = Registered {
            tables: 2,
            relations: vec![
                problem(Some("public.card"), "the replica identity is not DEFAULT"),
                problem(Some("public.card"), "captured column title was renamed to name"),
                problem(Some("public.list"), "the registered table was dropped"),
            ],
            triggers: vec![problem(Some("public.card"), "trigger \"!tidegate_fence\" is missing")],
            publication: vec![problem(None, "the publication tidegate publishes through partition roots")],
        };
        let findings = judge(&State::Current(registered), "app");
        let seen: Vec<(&str, Option<&str>, Vec<&str>)> = findings
            .iter()
            .map(|finding| {
                let steps = finding.repair.iter().map(|repair| repair.text.as_str()).collect();
                (finding.name, finding.subject.as_deref(), steps)
            })
            .collect();
        assert_eq!(
            seen,
            [
                ("schema", None, vec![]),
                (
                    "relations",
                    Some("public.card"),
                    vec![
                        "alter table public.card replica identity default",
                        "alter table public.card rename column name to title",
                        Part::Relations.advice(),
                    ]
                ),
                ("relations", Some("public.list"), vec![Part::Relations.advice()]),
                ("triggers", Some("public.card"), vec!["tidegate migrate --force", Part::Triggers.advice()]),
                (
                    "publication",
                    None,
                    vec![
                        "alter publication tidegate set (publish_via_partition_root = false)",
                        Part::Publication.advice(),
                    ]
                ),
            ]
        );
    }
}
