//! Reads what is judged about server, database and role. No judgment here.

use serde::Deserialize;
use serde_json::Value;
use sqlx::FromRow;
use sqlx::postgres::PgConnection;
use std::collections::BTreeMap;

/// The settings that are looked at. Those that a version lacks are absent from the answer.
const SETTINGS: &[&str] = &[
    "wal_level",
    "max_replication_slots",
    "max_wal_senders",
    "wal_sender_timeout",
    "max_slot_wal_keep_size",
    "idle_replication_slot_timeout",
    "output_plugin_libraries",
    "fsync",
    "full_page_writes",
    "synchronous_commit",
    "max_prepared_transactions",
    "default_transaction_read_only",
    "session_replication_role",
    "row_security",
    "logical_decoding_work_mem",
];

/// See `facts.sql`. Names are quoted as a statement needs them.
#[derive(Clone, Debug, FromRow)]
pub(super) struct Facts {
    pub(super) encoding: String,
    pub(super) standby: bool,
    pub(super) database: String,
    pub(super) role: String,
    #[sqlx(try_from = "Value")]
    pub(super) settings: Settings,
    pub(super) slots: i64,
    pub(super) own_slot: bool,
    pub(super) own_slot_active: bool,
    pub(super) idle_slots: Vec<String>,
    pub(super) senders: i64,
    pub(super) prepared: i64,
    /// Seconds.
    pub(super) prepared_age: Option<f64>,
    pub(super) superuser: bool,
    pub(super) bypass_rls: bool,
    pub(super) replication: bool,
    pub(super) rds_replication: bool,
    pub(super) login: String,
    pub(super) may_create: bool,
    pub(super) service_roles: Vec<String>,
    pub(super) aurora: bool,
    pub(super) schema_owner: Option<String>,
    pub(super) acts_as_owner: Option<bool>,
    pub(super) emit_public: Vec<String>,
    pub(super) emit_lacking: Vec<String>,
    #[sqlx(try_from = "Value")]
    pub(super) tables: Tables,
    pub(super) owner_bypasses_rls: bool,
}

/// Settings by name.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Settings(BTreeMap<String, Setting>);

/// One setting, as a session of this role begins with it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct Setting {
    /// In the setting's base unit.
    pub(super) value: String,
    /// With a unit.
    pub(super) shown: String,
    /// `pg_settings.source`: what set it.
    pub(super) source: String,
    /// `pg_settings.context`: `postmaster` needs a restart.
    pub(super) context: String,
    /// Another value is configured and waits for a restart.
    pub(super) pending_restart: bool,
}

impl Settings {
    /// `None`: this version has none of that name.
    pub(super) fn get(&self, name: &str) -> Option<&Setting> {
        self.0.get(name)
    }

    #[cfg(test)]
    pub(super) fn put(&mut self, name: &str, setting: Setting) {
        self.0.insert(name.to_owned(), setting);
    }

    #[cfg(test)]
    pub(super) fn remove(&mut self, name: &str) {
        self.0.remove(name);
    }
}

impl TryFrom<Value> for Settings {
    type Error = serde_json::Error;

    fn try_from(value: Value) -> Result<Settings, serde_json::Error> {
        serde_json::from_value(value)
    }
}

/// The named tables, in the order in which they were named.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Tables(pub(super) Vec<Table>);

/// One named table.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Table {
    pub(super) exists: bool,
    /// As a statement needs it.
    pub(super) quoted: String,
    pub(super) ordinary: Option<bool>,
    pub(super) owner: Option<String>,
    /// Whether our role is its owner, or acts as it.
    pub(super) owned: Option<bool>,
    /// Whether the owner of the schema tidegate, which fences run as, may read it.
    pub(super) readable: Option<bool>,
    /// Whether row-level security applies to that owner, unless it bypasses it.
    pub(super) secured: Option<bool>,
}

impl TryFrom<Value> for Tables {
    type Error = serde_json::Error;

    fn try_from(value: Value) -> Result<Tables, serde_json::Error> {
        serde_json::from_value(value)
    }
}

/// The server's version alone: what the rest needs is not in every version.
pub(super) async fn version(connection: &mut PgConnection) -> Result<(i32, String), sqlx::Error> {
    sqlx::query_as("select current_setting('server_version_num')::int4, current_setting('server_version')")
        .fetch_one(connection)
        .await
}

/// Everything, in one statement.
pub(super) async fn read(connection: &mut PgConnection, tables: &[String]) -> Result<Facts, sqlx::Error> {
    sqlx::query_as(include_str!("facts.sql")).bind(SETTINGS).bind(tables).fetch_one(connection).await
}

#[cfg(test)]
impl Facts {
    /// A server, database and role with which everything is all right, before installation.
    pub(super) fn good() -> Facts {
        let mut settings = Settings::default();
        for (name, value) in [
            ("wal_level", "logical"),
            ("max_replication_slots", "10"),
            ("max_wal_senders", "10"),
            ("wal_sender_timeout", "60000"),
            ("max_slot_wal_keep_size", "-1"),
            ("idle_replication_slot_timeout", "0"),
            ("output_plugin_libraries", "pgoutput, test_decoding"),
            ("fsync", "on"),
            ("full_page_writes", "on"),
            ("synchronous_commit", "on"),
            ("max_prepared_transactions", "0"),
            ("default_transaction_read_only", "off"),
            ("session_replication_role", "origin"),
            ("row_security", "on"),
            ("logical_decoding_work_mem", "65536"),
        ] {
            settings.put(name, Setting::plain(value));
        }
        Facts {
            encoding: "UTF8".into(),
            standby: false,
            database: "app".into(),
            role: "app_owner".into(),
            settings,
            slots: 0,
            own_slot: false,
            own_slot_active: false,
            idle_slots: Vec::new(),
            senders: 0,
            prepared: 0,
            prepared_age: None,
            superuser: false,
            bypass_rls: true,
            replication: true,
            rds_replication: false,
            login: "app_owner".into(),
            may_create: true,
            service_roles: Vec::new(),
            aurora: false,
            schema_owner: None,
            acts_as_owner: None,
            emit_public: Vec::new(),
            emit_lacking: Vec::new(),
            tables: Tables::default(),
            owner_bypasses_rls: true,
        }
    }

    /// With one setting changed.
    pub(super) fn with(mut self, name: &str, value: &str) -> Facts {
        self.settings.put(name, Setting::plain(value));
        self
    }
}

#[cfg(test)]
impl Setting {
    pub(super) fn plain(value: &str) -> Setting {
        Setting {
            value: value.to_owned(),
            shown: value.to_owned(),
            source: "default".into(),
            context: "sighup".into(),
            pending_restart: false,
        }
    }
}
