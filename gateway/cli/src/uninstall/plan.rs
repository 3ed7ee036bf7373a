//! What an uninstall would remove, and what would be lost. Reads only.

use anyhow::Context;
use serde::{Deserialize, Serialize};
use sqlx::postgres::PgConnection;
use sqlx::{Connection, FromRow};

/// Everything of ours in one database.
#[derive(Clone, Debug, FromRow, Serialize)]
pub struct Plan {
    /// Whether the schema tidegate is there.
    #[serde(skip)]
    schema: bool,
    /// Whether it has the function that removes it.
    #[serde(skip)]
    function: bool,
    /// Whether it has the tables that [`Lost`] is counted from.
    #[serde(skip)]
    tables: bool,
    /// Schemas of ours.
    pub schemas: Vec<String>,
    /// Their size.
    pub bytes: i64,
    /// Whether the publication is there.
    pub publication: bool,
    /// Replication slots of ours.
    #[sqlx(json)]
    pub slots: Vec<Slot>,
    /// The application's tables that have triggers of ours.
    #[sqlx(json)]
    pub triggers: Vec<Table>,
    /// Workers and gateways that are connected.
    #[sqlx(json)]
    pub sessions: Vec<Session>,
    #[serde(skip)]
    sees_sessions: bool,
    #[serde(skip)]
    drops_slots: bool,
    #[serde(skip)]
    login: String,
    #[serde(skip)]
    owner: Option<String>,
    #[serde(skip)]
    acts_as_owner: bool,
    /// What is lost; `None` where nothing can be counted.
    #[sqlx(skip)]
    pub lost: Option<Lost>,
}

/// A replication slot.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Slot {
    /// Its name.
    pub name: String,
    /// The process that reads it.
    pub active_pid: Option<i32>,
    /// What that process calls itself.
    pub reader: Option<String>,
}

/// A table of the application's.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Table {
    /// Schema-qualified.
    pub name: String,
    /// Triggers of ours on it.
    pub triggers: Vec<String>,
}

/// A connected worker or gateway.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Session {
    /// Its server process.
    pub pid: i32,
    /// What it calls itself.
    pub application: String,
    /// Where it runs, unless it came through a socket.
    pub from: Option<String>,
    /// Whether it is a worker's.
    pub worker: bool,
}

/// What goes with the schema.
#[derive(Clone, Debug, FromRow, Serialize)]
pub struct Lost {
    /// Synced tables registered.
    pub synced: i64,
    /// Tables that grants alone read.
    pub dependencies: i64,
    /// Grants registered.
    pub grants: i64,
    /// Effects in the log.
    pub effects: i64,
    /// Whether that number is an estimate.
    pub effects_estimated: bool,
    /// Accepted mutations whose clients have not been told that they are visible.
    pub unmaterialized: i64,
    /// Clients that have written.
    pub clients: i64,
    /// Age of a working worker's heartbeat, in seconds.
    #[serde(skip)]
    beat_age: Option<f64>,
}

/// Looks at everything.
///
/// # Errors
/// When the database cannot be asked.
pub async fn look(connection: &mut PgConnection) -> anyhow::Result<Plan> {
    let mut plan: Plan = sqlx::query_as(include_str!("plan.sql"))
        .fetch_one(&mut *connection)
        .await
        .context("look for what is installed")?;
    if plan.tables && plan.acts_as_owner {
        plan.lost = count(connection).await.context("count what would be lost")?;
    }
    Ok(plan)
}

/// A schema of another version may have other columns: then nothing is counted. Within a transaction, that must not end it.
async fn count(connection: &mut PgConnection) -> Result<Option<Lost>, sqlx::Error> {
    let mut transaction = connection.begin().await?;
    match sqlx::query_as(include_str!("lost.sql")).fetch_optional(&mut *transaction).await {
        Ok(lost) => transaction.commit().await.map(|()| lost),
        // SQLSTATE undefined_column, undefined_table.
        Err(sqlx::Error::Database(error)) if matches!(error.code().as_deref(), Some("42703" | "42P01")) => {
            transaction.rollback().await.map(|()| None)
        }
        Err(error) => Err(error),
    }
}

impl Plan {
    /// Whether there is nothing of ours.
    pub fn is_empty(&self) -> bool {
        self.schemas.is_empty() && !self.publication && self.slots.is_empty() && self.triggers.is_empty()
    }

    /// Whether the schema is there, so that it removes itself.
    pub fn has_schema(&self) -> bool {
        self.schema
    }

    /// Why nothing can be removed now, with what to do about it. The right ones to remove it, a whole schema, no worker.
    pub fn obstacle(&self) -> Option<String> {
        if self.schema && !self.acts_as_owner {
            let owner = self.owner.as_deref().unwrap_or("unknown");
            return Some(format!(
                "role {owner} owns the schema tidegate: connect as that role, as a member of it, or as a superuser"
            ));
        }
        if self.schema && !self.function {
            return Some(
                "the schema tidegate is there in part only: run `tidegate migrate` first, so that it knows what to remove"
                    .to_owned(),
            );
        }
        if !self.slots.is_empty() && !self.drops_slots {
            let login = &self.login;
            return Some(format!(
                "role {login} may not drop the replication slot, which would then keep WAL for ever: as a superuser, run `alter role {login} replication`"
            ));
        }
        self.worker()
    }

    /// A worker that runs. It would lose its stream under its feet, and one that a supervisor restarts would install everything anew.
    fn worker(&self) -> Option<String> {
        let workers: Vec<&Session> = self.sessions.iter().filter(|session| session.worker).collect();
        if let Some(first) = workers.first() {
            let pids: Vec<String> = workers.iter().map(|session| session.pid.to_string()).collect();
            let from =
                first.from.as_deref().map(|from| format!(", connected from {from}")).unwrap_or_default();
            return Some(format!(
                "a worker is running (server processes {}{from}): stop `tidegate capture` or `tidegate dev`, or whatever restarts it, and run this again; if its machine is gone, end its sessions: select pg_terminate_backend(pid) from unnest(array[{}]) pid",
                pids.join(", "),
                pids.join(", ")
            ));
        }
        // Whoever sees every session has seen none of a worker.
        let age = self.lost.as_ref().and_then(|lost| lost.beat_age).filter(|_| !self.sees_sessions)?;
        Some(format!(
            "a worker's heartbeat is {age:.0} s old: stop `tidegate capture`; if it was killed, its heartbeat counts for 15 s"
        ))
    }

    /// For a person.
    pub fn text(&self) -> String {
        let mut text = String::from("Everything of Tidegate's goes from this database:\n");
        if let Some(lost) = &self.lost {
            let Lost { synced, dependencies, grants, .. } = lost;
            text += &format!(
                "  the registrations of {synced} synced tables, {dependencies} that grants read, and {grants} grants\n"
            );
        }
        for Table { name, triggers } in &self.triggers {
            text += &format!("  {} triggers on {name}\n", triggers.len());
        }
        if self.publication {
            text += "  the publication tidegate\n";
        }
        for Slot { name, active_pid, reader } in &self.slots {
            text += &format!("  the replication slot {name}");
            if let Some(pid) = active_pid {
                let reader = reader.as_deref().filter(|reader| !reader.is_empty());
                let reader = reader.map(|reader| format!(" (\"{reader}\")")).unwrap_or_default();
                text += &format!(", which process {pid}{reader} reads: it is ended");
            }
            text += "\n";
        }
        for schema in &self.schemas {
            text += &format!("  the schema {schema}\n");
        }
        if let Some(lost) = &self.lost {
            let about = if lost.effects_estimated { "about " } else { "" };
            text += &format!(
                "With it go {about}{} effects, the outcomes of what {} clients have written ({} writes among them not visible yet), and every cursor: clients rebuild, should it be installed again.\n",
                lost.effects, lost.clients, lost.unmaterialized
            );
        }
        let others: Vec<String> = self
            .sessions
            .iter()
            .filter(|session| !session.worker)
            .map(|session| session.pid.to_string())
            .collect();
        if !others.is_empty() {
            text += &format!(
                "Gateways are connected (server processes {}): stop them, too; one that starts installs the schema again.\n",
                others.join(", ")
            );
        }
        text + "The application's tables and rows stay as they are.\n"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn installed() -> Plan {
        Plan {
            schema: true,
            function: true,
            tables: true,
            schemas: vec!["tidegate".into()],
            bytes: 0,
            publication: true,
            slots: vec![Slot { name: "tidegate_00000000".into(), active_pid: None, reader: None }],
            triggers: Vec::new(),
            sessions: Vec::new(),
            sees_sessions: true,
            drops_slots: true,
            login: "app".into(),
            owner: Some("tide".into()),
            acts_as_owner: true,
            lost: Some(Lost {
                synced: 1,
                dependencies: 0,
                grants: 0,
                effects: 5,
                effects_estimated: false,
                unmaterialized: 0,
                clients: 0,
                beat_age: Some(2.0),
            }),
        }
    }

    #[test]
    fn each_obstacle_is_told_with_what_to_do() {
        assert_eq!(installed().obstacle(), None, "whoever sees all sessions has seen no worker");
        let worker =
            Session { pid: 7, application: "tidegate capture 1 stream".into(), from: None, worker: true };
        for (plan, part) in [
            (Plan { acts_as_owner: false, ..installed() }, "role tide owns the schema"),
            (Plan { function: false, ..installed() }, "run `tidegate migrate` first"),
            (Plan { drops_slots: false, ..installed() }, "alter role app replication"),
            (Plan { sees_sessions: false, ..installed() }, "heartbeat is 2 s old"),
            (Plan { sessions: vec![worker], ..installed() }, "stop `tidegate capture`"),
        ] {
            let obstacle = plan.obstacle().unwrap_or_default();
            assert!(obstacle.contains(part), "{part}: {obstacle}");
        }
        let gateway = Session { pid: 8, application: "tidegate push".into(), from: None, worker: false };
        let plan = Plan { sessions: vec![gateway], ..installed() };
        assert_eq!(plan.obstacle(), None);
        assert!(plan.text().contains("Gateways are connected (server processes 8)"), "{}", plan.text());
    }
}
