//! Differences between the catalogues and what was registered, as the SQL functions tell them (F11, G5, H5, H6): asked here, for
//! examinations and readiness alike.

use sqlx::FromRow;

/// One difference.
#[derive(Clone, Debug, PartialEq, Eq, FromRow)]
pub struct Problem {
    /// The table, schema-qualified and quoted, where it is one's.
    pub relation: Option<String>,
    /// What differs.
    pub problem: String,
}

/// What can differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The registered tables themselves.
    Relations,
    /// Their triggers.
    Triggers,
    /// The publication.
    Publication,
}

/// Problems that a sentence lists; the rest is counted.
const SHOWN: usize = 5;

impl Part {
    /// All parts.
    pub const ALL: [Part; 3] = [Part::Relations, Part::Triggers, Part::Publication];

    /// What finds the problems of this part. Reads only.
    pub fn query(self) -> &'static str {
        match self {
            Part::Relations => "select relation, problem from tidegate.relation_problems()",
            Part::Triggers => "select relation, problem from tidegate.trigger_problems()",
            Part::Publication => "select relation, problem from tidegate.publication_problems()",
        }
    }

    /// What to do, whatever the problem.
    pub fn advice(self) -> &'static str {
        match self {
            Part::Relations => {
                "Put the table back as it was registered. Where that cannot be, leave and begin anew: tidegate uninstall, migrate, apply."
            }
            Part::Triggers => {
                "Run `tidegate migrate --force`. Writes that bypassed a trigger block the stream until `tidegate reset --reason …`."
            }
            Part::Publication => {
                "Give publication `tidegate` exactly the registered tables, all four operations, no row filter, no column list. Rows written meanwhile are missing: `tidegate reset --reason …`."
            }
        }
    }
}

impl Problem {
    /// All of them in one sentence; `None` for none.
    pub fn sentence(problems: &[Problem]) -> Option<String> {
        if problems.is_empty() {
            return None;
        }
        let mut said: Vec<String> = problems
            .iter()
            .take(SHOWN)
            .map(|Problem { relation, problem }| match relation {
                Some(relation) => format!("{relation}: {problem}"),
                None => problem.clone(),
            })
            .collect();
        if problems.len() > SHOWN {
            said.push(format!("and {} more", problems.len() - SHOWN));
        }
        Some(said.join("; "))
    }
}
