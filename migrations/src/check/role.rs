//! Judges what the role may do: the one that installs, registers and runs the worker. Pure.

use super::facts::{Facts, Table};
use super::finding::{Finding, Repair};
use super::service::Service;

pub(super) fn judge(facts: &Facts) -> Vec<Finding> {
    let mut findings = vec![replication(facts), create(facts)];
    findings.extend(owner(facts));
    findings.push(bypass_rls(facts));
    findings.push(emit(facts));
    findings.extend(facts.tables.0.iter().map(|table| of_table(facts, table)));
    findings
}

fn replication(facts: &Facts) -> Finding {
    let name = "replication_right";
    let login = &facts.login;
    let needed = "REPLICATION, for the worker's stream";
    if facts.replication {
        return Finding::ok(name, format!("role {login} may replicate"), needed);
    }
    if facts.rds_replication {
        return Finding::ok(
            name,
            format!("role {login} may replicate, as a member of rds_replication"),
            needed,
        );
    }
    let repair =
        match Service::of(facts) {
            Service::Rds | Service::Aurora => Repair::sql(format!("grant rds_replication to {login}")),
            Service::Own => Repair::sql(format!("alter role {login} replication")).then("as a superuser"),
            Service::CloudSql => Repair::sql(format!("alter user {login} with replication"))
                .then("as a member of cloudsqlsuperuser"),
            Service::Azure => Repair::sql(format!("alter role {login} with replication"))
                .then("as a member of azure_pg_admin"),
            Service::Supabase => {
                Repair::sql(format!("alter role {login} with replication")).then("as role postgres")
            }
            Service::Neon => Repair::sql(format!("alter role {login} with replication"))
                .then("as a member of neon_superuser"),
        };
    Finding::failure(name, format!("role {login} may not replicate"), needed, vec![repair])
}

fn create(facts: &Facts) -> Finding {
    let name = "create_right";
    let Facts { role, database, .. } = facts;
    let needed = "CREATE on the database, for two schemas and a publication";
    if facts.may_create {
        return Finding::ok(name, format!("role {role} may create schemas and publications"), needed);
    }
    let repair = Repair::sql(format!("grant create on database {database} to {role}"))
        .then("as the database's owner or a superuser");
    Finding::failure(name, format!("role {role} may create nothing in the database"), needed, vec![repair])
}

/// Only once it is installed.
fn owner(facts: &Facts) -> Option<Finding> {
    let owner = facts.schema_owner.as_ref()?;
    let (name, role) = ("schema_owner", &facts.role);
    let needed = "the role that installed it, or a member: for upgrades, registering and the worker";
    if facts.superuser || facts.acts_as_owner == Some(true) {
        return Some(Finding::ok(name, format!("role {owner} owns the schema tidegate"), needed));
    }
    let found = format!("role {owner} owns the schema tidegate, and {role} does not act as it");
    let repair = Repair::sql(format!("grant {owner} to {role}")).then("or connect as that role");
    Some(Finding::failure(name, found, needed, vec![repair]))
}

/// By itself it is needed for nothing: only where policies apply to the role, which each named table tells.
fn bypass_rls(facts: &Facts) -> Finding {
    let (name, role) = ("bypass_rls", &facts.role);
    let needed = "BYPASSRLS only for tables with policies that apply to the role: those of other owners, or with FORCE";
    let found = if facts.superuser {
        format!("role {role} is a superuser: no policy applies to it")
    } else if facts.bypass_rls {
        format!("role {role} has BYPASSRLS")
    } else {
        format!("role {role} has no BYPASSRLS")
    };
    Finding::ok(name, found, needed)
}

/// F8. A forged fence blocks the stream; it never puts anything into it.
fn emit(facts: &Facts) -> Finding {
    let name = "emit_right";
    let needed = "the right to emit logical messages for Tidegate's role alone: with it, any role could block the stream by a forged message";
    let owner = facts.schema_owner.as_ref().unwrap_or(&facts.role);
    if !facts.emit_lacking.is_empty() {
        let grant =
            |function: &String| Repair::sql(format!("grant execute on function {function} to {owner}"));
        let found = format!(
            "role {owner} may not emit logical messages: every write of a registered table would fail"
        );
        let repair =
            facts.emit_lacking.iter().map(|function| grant(function).then("as a superuser")).collect();
        return Finding::failure(name, found, needed, repair);
    }
    if facts.emit_public.is_empty() {
        return Finding::ok(name, "PUBLIC may not emit logical messages", needed);
    }
    if facts.schema_owner.is_none() && facts.superuser {
        let found = "PUBLIC may emit logical messages, as PostgreSQL comes; `tidegate migrate` revokes it";
        return Finding::ok(name, found, needed);
    }
    let mut repair = Vec::new();
    if Service::of(facts) != Service::Own {
        repair.push(Repair::act(
            "Only the service's own superuser can revoke it: ask its support, or live with it.",
        ));
    }
    for function in &facts.emit_public {
        // The owner would lose it with everybody else.
        repair.push(
            Repair::sql(format!("grant execute on function {function} to {owner}")).then("as a superuser"),
        );
        repair.push(
            Repair::sql(format!("revoke execute on function {function} from public")).then("as a superuser"),
        );
    }
    Finding::warning(name, "PUBLIC may emit logical messages", needed, repair)
}

/// What registering would ask of this table's rights.
fn of_table(facts: &Facts, table: &Table) -> Finding {
    let name = "table_rights";
    let (role, quoted) = (&facts.role, &table.quoted);
    let owner = facts.schema_owner.as_ref().unwrap_or(role);
    let needed = "ownership, or membership in the owner, for its triggers; reading it past its policies, for the first copy";
    let failure = |found: String, repair: Repair| {
        Finding::failure(name, found, needed, vec![repair]).of(quoted.as_str())
    };
    if !table.exists {
        let act = Repair::act("Create it first, or correct the name: schema.table.");
        return failure("there is no such table".to_owned(), act);
    }
    if table.ordinary != Some(true) {
        return failure("it is not an ordinary table".to_owned(), Repair::act("Register ordinary tables."));
    }
    let table_owner = table.owner.as_deref().unwrap_or("unknown");
    if table.owned != Some(true) {
        let found = format!("it belongs to role {table_owner}, which {role} is not a member of");
        return failure(found, Repair::sql(format!("grant {table_owner} to {role}")));
    }
    if table.readable != Some(true) {
        let found = format!("role {owner} may not read it");
        return failure(found, Repair::sql(format!("grant select on {quoted} to {owner}")));
    }
    if table.secured == Some(true) && !facts.owner_bypasses_rls {
        let found = format!("its row-level security applies to role {owner}");
        return failure(found, Repair::sql(format!("alter role {owner} bypassrls")).then("as a superuser"));
    }
    Finding::ok(name, format!("role {role} may register it"), needed).of(quoted.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::facts::Tables;
    use crate::check::finding::Level;

    fn first(finding: &Finding) -> &str {
        finding.repair.first().map_or("", |repair| repair.text.as_str())
    }

    fn failing(facts: &Facts) -> Vec<(&'static str, Level, String)> {
        let bad = judge(facts).into_iter().filter(|finding| finding.level != Level::Ok);
        bad.map(|finding| (finding.name, finding.level, first(&finding).to_owned())).collect()
    }

    #[test]
    fn each_missing_right_is_named_alone_with_its_statement() {
        assert_eq!(failing(&Facts::good()), []);
        let good = Facts::good;
        let message = "pg_logical_emit_message(boolean,text,text)".to_owned();
        for (facts, name, level, repair) in [
            (
                Facts { replication: false, ..good() },
                "replication_right",
                Level::Failure,
                "alter role app_owner replication",
            ),
            (
                Facts { may_create: false, ..good() },
                "create_right",
                Level::Failure,
                "grant create on database app to app_owner",
            ),
            (
                Facts { schema_owner: Some("tide".into()), acts_as_owner: Some(false), ..good() },
                "schema_owner",
                Level::Failure,
                "grant tide to app_owner",
            ),
            (
                Facts { emit_public: vec![message.clone()], ..good() },
                "emit_right",
                Level::Warning,
                "grant execute on function pg_logical_emit_message(boolean,text,text) to app_owner",
            ),
            (
                Facts { emit_lacking: vec![message.clone()], ..good() },
                "emit_right",
                Level::Failure,
                "grant execute on function pg_logical_emit_message(boolean,text,text) to app_owner",
            ),
        ] {
            assert_eq!(failing(&facts), [(name, level, repair.to_owned())]);
        }
        // The installer will see to it.
        let superuser = Facts { superuser: true, emit_public: vec![message], ..good() };
        assert_eq!(failing(&superuser), []);
    }

    #[test]
    fn each_service_gives_the_right_to_replicate_by_its_own_statement() {
        for (role, statement) in [
            ("rds_superuser", "grant rds_replication to app_owner"),
            ("cloudsqlsuperuser", "alter user app_owner with replication"),
            ("azure_pg_admin", "alter role app_owner with replication"),
            ("supabase_admin", "alter role app_owner with replication"),
            ("neon_superuser", "alter role app_owner with replication"),
        ] {
            let facts = Facts { replication: false, service_roles: vec![role.into()], ..Facts::good() };
            assert_eq!(first(&replication(&facts)), statement, "{role}");
        }
        let member = Facts { replication: false, rds_replication: true, ..Facts::good() };
        assert_eq!(replication(&member).level, Level::Ok);
    }

    #[test]
    fn a_named_table_is_judged_by_what_registering_it_needs() {
        let table = || Table {
            exists: true,
            quoted: "public.card".into(),
            ordinary: Some(true),
            owner: Some("app_owner".into()),
            owned: Some(true),
            readable: Some(true),
            secured: Some(false),
        };
        let with = |table| Facts { tables: Tables(vec![table]), owner_bypasses_rls: false, ..Facts::good() };
        assert_eq!(failing(&with(table())), []);
        for (table, repair) in [
            (Table { exists: false, ..table() }, "Create it first, or correct the name: schema.table."),
            (Table { ordinary: Some(false), ..table() }, "Register ordinary tables."),
            (
                Table { owned: Some(false), owner: Some("other".into()), ..table() },
                "grant other to app_owner",
            ),
            (Table { readable: Some(false), ..table() }, "grant select on public.card to app_owner"),
            (Table { secured: Some(true), ..table() }, "alter role app_owner bypassrls"),
        ] {
            assert_eq!(failing(&with(table)), [("table_rights", Level::Failure, repair.to_owned())]);
        }
        let bypassing = Facts { owner_bypasses_rls: true, ..with(Table { secured: Some(true), ..table() }) };
        assert_eq!(failing(&bypassing), []);
    }
}
