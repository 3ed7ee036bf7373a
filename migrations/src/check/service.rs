//! Who runs the server, and what settings are called there. Facts of the services' own documentation.

use super::facts::{Facts, Setting};
use super::finding::Repair;
use serde::Serialize;

/// Who runs the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Service {
    /// Whoever can change its configuration files: the operator.
    Own,
    /// Amazon RDS for PostgreSQL.
    Rds,
    /// Amazon Aurora PostgreSQL.
    Aurora,
    /// Google Cloud SQL for PostgreSQL.
    CloudSql,
    /// Azure Database for PostgreSQL, flexible server.
    Azure,
    /// Supabase.
    Supabase,
    /// Neon.
    Neon,
}

/// What a service needs before Tidegate can use a database of it. `<role>` and `<database>` stand for the reader's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Managed {
    /// Which.
    pub service: Service,
    /// Its name.
    pub title: &'static str,
    /// Parameters, by the service's own names, with where they are set.
    pub settings: &'static [&'static str],
    /// Statements for its administrator's role.
    pub statements: &'static [&'static str],
    /// What else to know.
    pub notes: &'static [&'static str],
}

const CREATE: &str = "grant create on database <database> to <role>;";
const SUPERUSER_ONLY: &str = "Nobody but the service can revoke the right to emit logical messages from PUBLIC: a role that may log in could then block the stream, never put a row into it.";

/// What each service needs.
pub const MANAGED: [Managed; 6] = [
    Managed {
        service: Service::Rds,
        title: "Amazon RDS for PostgreSQL",
        settings: &[
            "rds.logical_replication = 1   (DB parameter group; then reboot the instance; it sets wal_level = logical)",
        ],
        statements: &["grant rds_replication to <role>;", CREATE],
        notes: &[
            "Where a restore, an upgrade or a failover did not keep the slot, `tidegate status` says so, and `tidegate reset --reason …` starts the stream anew.",
            SUPERUSER_ONLY,
        ],
    },
    Managed {
        service: Service::Aurora,
        title: "Amazon Aurora PostgreSQL",
        settings: &[
            "rds.logical_replication = 1   (DB cluster parameter group; then reboot the writer instance; it sets wal_level = logical)",
        ],
        statements: &["grant rds_replication to <role>;", CREATE],
        notes: &[
            "Connect to the cluster's writer endpoint, directly: not through RDS Proxy.",
            SUPERUSER_ONLY,
        ],
    },
    Managed {
        service: Service::CloudSql,
        title: "Google Cloud SQL for PostgreSQL",
        settings: &[
            "cloudsql.logical_decoding = on   (database flag; the instance restarts; it sets wal_level = logical)",
        ],
        statements: &["alter user <role> with replication;   -- as a member of cloudsqlsuperuser", CREATE],
        notes: &[
            "`gcloud sql instances patch --database-flags` replaces all flags: name the others, too.",
            SUPERUSER_ONLY,
        ],
    },
    Managed {
        service: Service::Azure,
        title: "Azure Database for PostgreSQL, flexible server",
        settings: &["wal_level = logical   (server parameter; then restart the server)"],
        statements: &["alter role <role> with replication;   -- as a member of azure_pg_admin", CREATE],
        notes: &["Connect to port 5432: 6432 is the built-in PgBouncer.", SUPERUSER_ONLY],
    },
    Managed {
        service: Service::Supabase,
        title: "Supabase",
        settings: &[
            "wal_level = logical   (as it comes)",
            "max_slot_wal_keep_size, max_wal_senders, max_replication_slots   (supabase --experimental --project-ref <ref> postgres-config update --config <name>=<value>)",
        ],
        statements: &[
            "alter role <role> with replication;   -- as role postgres, from PostgreSQL 17; before, use role postgres itself",
        ],
        notes: &[
            "Take the direct connection string: the pooler cannot replicate. It is IPv6, unless the project has the IPv4 add-on.",
            "max_slot_wal_keep_size is finite there: a worker that falls further behind than that loses its slot.",
            SUPERUSER_ONLY,
        ],
    },
    Managed {
        service: Service::Neon,
        title: "Neon",
        settings: &[
            "wal_level = logical   (console: Settings, Logical Replication, Enable; it cannot be undone)",
        ],
        statements: &[
            "alter role <role> with replication;   -- only for roles that were made by SQL; others have it",
            CREATE,
        ],
        notes: &[
            "Take the connection string without -pooler in its host name.",
            "A slot that nobody reads for about 40 hours is removed, and restoring a branch removes all: `tidegate reset --reason …` starts the stream anew.",
            "A compute whose stream is read does not scale to zero.",
            SUPERUSER_ONLY,
        ],
    },
];

impl Service {
    /// By what only one of them has.
    pub(super) fn of(facts: &Facts) -> Service {
        let has = |names: &[&str]| facts.service_roles.iter().any(|role| names.contains(&role.as_str()));
        // Supabase and Neon first: they run on what others provide.
        if has(&["supabase_admin"]) {
            Service::Supabase
        } else if has(&["neon_superuser"]) {
            Service::Neon
        } else if has(&["rdsadmin", "rds_superuser"]) {
            if facts.aurora { Service::Aurora } else { Service::Rds }
        } else if has(&["cloudsqladmin", "cloudsqlsuperuser"]) {
            Service::CloudSql
        } else if has(&["azure_pg_admin"]) {
            Service::Azure
        } else {
            Service::Own
        }
    }

    /// What it needs; `None` for an operator's own server.
    pub fn managed(self) -> Option<&'static Managed> {
        MANAGED.iter().find(|managed| managed.service == self)
    }

    /// How a setting of the server is given this value.
    fn parameter(self, facts: &Facts, name: &str, value: &str, restart: bool) -> Repair {
        let reload = |then: &'static str| if restart { then } else { "it is applied at once" };
        match (self, name) {
            (Service::Own, _) => Repair::sql(format!("alter system set {name} = '{value}'")).then(
                match (facts.superuser, restart) {
                    (true, true) => "restart PostgreSQL",
                    (true, false) => "select pg_reload_conf()",
                    (false, true) => "as a superuser; then restart PostgreSQL",
                    (false, false) => "as a superuser; then select pg_reload_conf()",
                },
            ),
            (Service::Rds, "wal_level") => {
                Repair::setting("rds.logical_replication = 1   (DB parameter group)")
                    .then("reboot the instance")
            }
            (Service::Aurora, "wal_level") => {
                Repair::setting("rds.logical_replication = 1   (DB cluster parameter group)")
                    .then("reboot the writer instance")
            }
            (Service::CloudSql, "wal_level") => {
                Repair::setting("cloudsql.logical_decoding = on   (database flag)")
                    .then("the instance restarts")
            }
            (Service::Neon, "wal_level") => {
                Repair::act("In Neon's console: Settings, Logical Replication, Enable. It cannot be undone.")
            }
            (Service::Rds, _) => Repair::setting(format!("{name} = {value}   (DB parameter group)"))
                .then(reload("reboot the instance")),
            (Service::Aurora, _) => {
                Repair::setting(format!("{name} = {value}   (DB cluster parameter group)"))
                    .then(reload("reboot the writer instance"))
            }
            (Service::CloudSql, _) => Repair::setting(format!("{name} = {value}   (database flag)"))
                .then(reload("the instance restarts")),
            (Service::Azure, _) => Repair::setting(format!("{name} = {value}   (server parameter)"))
                .then(reload("restart the server")),
            (Service::Supabase, _) => Repair::command(format!(
                "supabase --experimental --project-ref <ref> postgres-config update --config {name}={value}"
            ))
            .then(reload("the database restarts")),
            (Service::Neon, _) => Repair::act(format!("Ask Neon's support to set {name} = {value}.")),
        }
    }
}

/// How `name` becomes `value`, where it was set: for one role or database by a statement, for the server by its owner's means.
pub(super) fn set(facts: &Facts, setting: &Setting, name: &str, value: &str) -> Repair {
    let (database, login) = (&facts.database, &facts.login);
    match setting.source.as_str() {
        "user" => Repair::sql(format!("alter role {login} set {name} = '{value}'")),
        "database" => Repair::sql(format!("alter database {database} set {name} = '{value}'")),
        "database user" => {
            Repair::sql(format!("alter role {login} in database {database} set {name} = '{value}'"))
        }
        // It wins over every file.
        "command line" => Repair::act(format!(
            "Start PostgreSQL with {name} = {value} on its command line, or without {name}."
        )),
        _ => Service::of(facts).parameter(facts, name, value, setting.context == "postmaster"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::finding::RepairKind;

    fn with_roles(roles: &[&str]) -> Facts {
        Facts { service_roles: roles.iter().map(|role| (*role).to_owned()).collect(), ..Facts::good() }
    }

    #[test]
    fn a_service_is_known_by_its_roles() {
        for (roles, service) in [
            (&[][..], Service::Own),
            (&["rdsadmin", "rds_superuser"], Service::Rds),
            (&["cloudsqladmin", "cloudsqlsuperuser"], Service::CloudSql),
            (&["azure_pg_admin"], Service::Azure),
            (&["supabase_admin"], Service::Supabase),
            (&["neon_superuser"], Service::Neon),
        ] {
            assert_eq!(Service::of(&with_roles(roles)), service, "{roles:?}");
            assert_eq!(service.managed().is_none(), service == Service::Own);
        }
        assert_eq!(Service::of(&Facts { aurora: true, ..with_roles(&["rdsadmin"]) }), Service::Aurora);
    }

    #[test]
    fn a_setting_is_repaired_where_it_was_set() {
        let facts = Facts::good();
        let at = |source: &str, context: &str| Setting {
            source: source.into(),
            context: context.into(),
            ..Setting::plain("x")
        };
        for (source, context, text, then) in [
            ("default", "sighup", "alter system set a = 'v'", Some("select pg_reload_conf()")),
            ("configuration file", "postmaster", "alter system set a = 'v'", Some("restart PostgreSQL")),
            ("user", "user", "alter role app_owner set a = 'v'", None),
            ("database", "user", "alter database app set a = 'v'", None),
            ("database user", "user", "alter role app_owner in database app set a = 'v'", None),
        ] {
            let repair = set(&Facts { superuser: true, ..Facts::good() }, &at(source, context), "a", "v");
            assert_eq!((repair.text.as_str(), repair.then.as_deref()), (text, then), "{source}");
        }
        // Who may not alter the system is told who may.
        for (context, then) in [
            ("sighup", "as a superuser; then select pg_reload_conf()"),
            ("postmaster", "as a superuser; then restart PostgreSQL"),
        ] {
            assert_eq!(set(&facts, &at("default", context), "a", "v").then.as_deref(), Some(then));
        }
        assert_eq!(set(&facts, &at("command line", "postmaster"), "a", "v").kind, RepairKind::Act);
    }

    #[test]
    fn each_service_says_logical_decoding_in_its_own_words() {
        let wal_level = Setting { context: "postmaster".into(), ..Setting::plain("replica") };
        for (role, part) in [
            ("rdsadmin", "rds.logical_replication = 1"),
            ("cloudsqladmin", "cloudsql.logical_decoding = on"),
            ("azure_pg_admin", "wal_level = logical   (server parameter)"),
            ("supabase_admin", "postgres-config update --config wal_level=logical"),
            ("neon_superuser", "Settings, Logical Replication, Enable"),
        ] {
            let repair = set(&with_roles(&[role]), &wal_level, "wal_level", "logical");
            assert!(repair.text.contains(part), "{}", repair.text);
        }
    }
}
