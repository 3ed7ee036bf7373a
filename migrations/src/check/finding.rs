//! What an examination says. Values only: composed of our own words, settings, and names from the catalogues (Q1).

use serde::Serialize;

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// As it should be.
    Ok,
    /// It works, and may hurt later.
    Warning,
    /// Something of Tidegate cannot work, or cannot keep its promises.
    Failure,
}

/// One thing that was examined.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was examined, such as `wal_level`.
    pub name: &'static str,
    /// The table, where the finding is of one.
    pub subject: Option<String>,
    /// How much it matters.
    pub level: Level,
    /// What was found, and what that does.
    pub found: String,
    /// What is needed, or advised.
    pub needed: String,
    /// What repairs it, in this order; empty when nothing is to be done.
    pub repair: Vec<Repair>,
}

/// One step of a repair.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Repair {
    /// Where the text goes.
    pub kind: RepairKind,
    /// The exact statement, setting or command; of an act, a sentence.
    pub text: String,
    /// What must follow before it counts, such as a restart.
    pub then: Option<String>,
}

/// Where the text of a repair goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RepairKind {
    /// A statement for the database.
    Sql,
    /// A parameter that the service's console or command line sets.
    Setting,
    /// A command for a shell.
    Command,
    /// Something that a person does.
    Act,
}

impl Finding {
    /// Nothing is to be done.
    pub(super) fn ok(name: &'static str, found: impl Into<String>, needed: impl Into<String>) -> Finding {
        Finding {
            name,
            subject: None,
            level: Level::Ok,
            found: found.into(),
            needed: needed.into(),
            repair: Vec::new(),
        }
    }

    /// It may hurt later.
    pub(super) fn warning(
        name: &'static str,
        found: impl Into<String>,
        needed: impl Into<String>,
        repair: Vec<Repair>,
    ) -> Finding {
        Finding { level: Level::Warning, repair, ..Finding::ok(name, found, needed) }
    }

    /// It cannot work so.
    pub(super) fn failure(
        name: &'static str,
        found: impl Into<String>,
        needed: impl Into<String>,
        repair: Vec<Repair>,
    ) -> Finding {
        Finding { level: Level::Failure, repair, ..Finding::ok(name, found, needed) }
    }

    /// Names the table.
    #[must_use]
    pub(super) fn of(self, subject: impl Into<String>) -> Finding {
        Finding { subject: Some(subject.into()), ..self }
    }
}

impl Repair {
    /// A statement.
    pub(super) fn sql(text: impl Into<String>) -> Repair {
        Repair { kind: RepairKind::Sql, text: text.into(), then: None }
    }

    /// A parameter of a service.
    pub(super) fn setting(text: impl Into<String>) -> Repair {
        Repair { kind: RepairKind::Setting, text: text.into(), then: None }
    }

    /// A command.
    pub(super) fn command(text: impl Into<String>) -> Repair {
        Repair { kind: RepairKind::Command, text: text.into(), then: None }
    }

    /// An act.
    pub(super) fn act(text: impl Into<String>) -> Repair {
        Repair { kind: RepairKind::Act, text: text.into(), then: None }
    }

    /// What must follow.
    #[must_use]
    pub(super) fn then(self, then: impl Into<String>) -> Repair {
        Repair { then: Some(then.into()), ..self }
    }
}
