//! Judges what the server is and how it is configured for logical decoding. Pure.

use super::facts::Facts;
use super::finding::{Finding, Repair};
use super::service;

/// Free slots and walsenders wanted: one for the worker's stream, and one for the candidate of a reset, which lives beside it.
const FREE_WANTED: i64 = 2;
/// Below it readiness would hardly have time to tell: it fails at 256 MiB of lag by default, and this is four times as much.
const KEEP_SIZE_MB_MIN: i64 = 1024;
/// The worker reports its position at least every 10 s; a timeout below that trusts in the server's own keepalives alone.
const SENDER_TIMEOUT_MS_MIN: i64 = 10_000;
/// PostgreSQL's default, in KiB.
const WORK_MEM_KB: i64 = 64 << 10;

pub(super) fn judge(facts: &Facts) -> Vec<Finding> {
    let judges: [fn(&Facts) -> Option<Finding>; 12] = [
        |facts| Some(encoding(facts)),
        |facts| Some(primary(facts)),
        read_only,
        wal_level,
        |facts| slots(facts),
        |facts| senders(facts),
        sender_timeout,
        keep_size,
        idle_timeout,
        |facts| Some(plugin(facts)),
        |facts| Some(prepared(facts)),
        work_mem,
    ];
    judges.iter().filter_map(|judge| judge(facts)).collect()
}

fn encoding(facts: &Facts) -> Finding {
    let name = "encoding";
    let needed = "UTF8: texts have the same bytes in the log and on the wire";
    if facts.encoding == "UTF8" {
        return Finding::ok(name, "UTF8", needed);
    }
    let found = format!("the database has encoding {}", facts.encoding);
    let create = Repair::sql("create database <new name> encoding 'UTF8' template template0");
    Finding::failure(name, found, needed, vec![create.then("move the data there with pg_dump and psql")])
}

fn primary(facts: &Facts) -> Finding {
    let name = "primary";
    let needed = "the primary: Tidegate writes what it has materialized";
    if !facts.standby {
        return Finding::ok(name, "a primary", needed);
    }
    let act = Repair::act("Connect to the primary; or, if this server is to become it: select pg_promote()");
    Finding::failure(name, "the server is a read-only standby", needed, vec![act])
}

fn read_only(facts: &Facts) -> Option<Finding> {
    let name = "default_transaction_read_only";
    let setting = facts.settings.get(name)?;
    let needed = "off: installing, registering and pushing write";
    if setting.value == "off" {
        return Some(Finding::ok(name, "off", needed));
    }
    let found = "on: every transaction of this role here begins read-only";
    Some(Finding::failure(name, found, needed, vec![service::set(facts, setting, name, "off")]))
}

fn wal_level(facts: &Facts) -> Option<Finding> {
    let name = "wal_level";
    let setting = facts.settings.get(name)?;
    let needed = "logical: the worker reads changes from the write-ahead log";
    if setting.value == "logical" {
        return Some(Finding::ok(name, "logical", needed));
    }
    let mut found = format!("{}: no logical slot can be created", setting.value);
    if setting.pending_restart {
        found += "; another value is configured and waits for a restart";
    }
    Some(Finding::failure(name, found, needed, vec![service::set(facts, setting, name, "logical")]))
}

/// What is counted against a limit of the server.
struct Places<'a> {
    setting: &'static str,
    /// In the plural.
    of: &'static str,
    used: i64,
    /// Whether the worker already has its own.
    own: bool,
    before: Vec<Repair>,
    facts: &'a Facts,
}

fn places(places: Places<'_>) -> Option<Finding> {
    let Places { setting: name, of, used, own, before, facts } = places;
    let setting = facts.settings.get(name)?;
    let max: i64 = setting.value.parse().ok()?;
    let wanted = FREE_WANTED - i64::from(own);
    let free = (max - used).max(0);
    let needed = if own {
        format!("{wanted} free: a reset makes its own beside the worker's")
    } else {
        format!("{wanted} free: one for the worker, one for a reset, which makes its own beside it")
    };
    let found = format!("{used} of {max} {of} are in use");
    if free >= wanted {
        return Some(Finding::ok(name, found, needed));
    }
    let mut repair = before;
    repair.push(service::set(facts, setting, name, &(used + wanted).max(10).to_string()));
    Some(if !own && free == 0 {
        Finding::failure(name, format!("{found}: the worker cannot start"), needed, repair)
    } else {
        Finding::warning(name, format!("{found}: a reset could not start"), needed, repair)
    })
}

fn slots(facts: &Facts) -> Option<Finding> {
    let idle = &facts.idle_slots;
    let drop = |slot: &String| {
        Repair::sql(format!("select pg_drop_replication_slot({slot})"))
            .then("only if nobody needs it any more")
    };
    places(Places {
        setting: "max_replication_slots",
        of: "replication slots",
        used: facts.slots,
        own: facts.own_slot,
        before: idle.iter().map(drop).collect(),
        facts,
    })
}

fn senders(facts: &Facts) -> Option<Finding> {
    places(Places {
        setting: "max_wal_senders",
        of: "walsenders",
        used: facts.senders,
        own: facts.own_slot_active,
        before: Vec::new(),
        facts,
    })
}

fn sender_timeout(facts: &Facts) -> Option<Finding> {
    let name = "wal_sender_timeout";
    let setting = facts.settings.get(name)?;
    let milliseconds: i64 = setting.value.parse().ok()?;
    let needed = "10s or more, and not 0";
    let repair = || vec![service::set(facts, setting, name, "60s")];
    Some(if milliseconds == 0 {
        let found = "0: a worker whose machine has vanished holds the slot until TCP gives up, or until the next worker takes over";
        Finding::warning(name, found, needed, repair())
    } else if milliseconds < SENDER_TIMEOUT_MS_MIN {
        let found = format!(
            "{}: each pause of the network that is longer ends the stream; the worker then decodes again from the slot's position",
            setting.shown
        );
        Finding::warning(name, found, needed, repair())
    } else {
        Finding::ok(name, setting.shown.clone(), needed)
    })
}

fn keep_size(facts: &Facts) -> Option<Finding> {
    let name = "max_slot_wal_keep_size";
    let setting = facts.settings.get(name)?;
    let megabytes: i64 = setting.value.parse().ok()?;
    let needed = "-1, with an eye on the disk; or at least 1GB";
    Some(if megabytes < 0 {
        let found = "-1: the slot keeps WAL for as long as the worker is away, which can fill the disk";
        Finding::ok(name, found, needed)
    } else if megabytes < KEEP_SIZE_MB_MIN {
        let found = format!(
            "{}: a worker that is further behind loses its slot, and then only `tidegate reset` leads on",
            setting.shown
        );
        Finding::warning(name, found, needed, vec![service::set(facts, setting, name, "16GB")])
    } else {
        let found = format!(
            "{}: a worker that is further behind loses its slot, and then only `tidegate reset` leads on",
            setting.shown
        );
        Finding::ok(name, found, needed)
    })
}

/// PostgreSQL 18 and newer.
fn idle_timeout(facts: &Facts) -> Option<Finding> {
    let name = "idle_replication_slot_timeout";
    let setting = facts.settings.get(name)?;
    let needed = "0: a slot waits for its worker, however long";
    if setting.value == "0" {
        return Some(Finding::ok(name, "0", needed));
    }
    let found = format!(
        "{}: a worker that is stopped for longer loses its slot at the next checkpoint, and then only `tidegate reset` leads on",
        setting.shown
    );
    Some(Finding::warning(name, found, needed, vec![service::set(facts, setting, name, "0")]))
}

/// pgoutput is part of PostgreSQL; since the minor versions of August 2026 a list says which plugins may be used.
fn plugin(facts: &Facts) -> Finding {
    let name = "output_plugin";
    let needed = "pgoutput, which is part of PostgreSQL: no extension";
    let Some(setting) = facts.settings.get("output_plugin_libraries") else {
        return Finding::ok(name, "pgoutput may be used", needed);
    };
    let listed = setting.value.split(',').map(|library| library.trim().trim_matches('"'));
    let mut listed: Vec<&str> = listed.filter(|library| !library.is_empty()).collect();
    if listed.contains(&"pgoutput") {
        return Finding::ok(name, "pgoutput may be used", needed);
    }
    let found =
        format!("output_plugin_libraries is '{}': no slot of pgoutput can be created or read", setting.value);
    listed.push("pgoutput");
    // A list: each name by itself, or the server takes all of it for one.
    let repair = match service::Service::of(facts) {
        service::Service::Own
            if !matches!(setting.source.as_str(), "user" | "database" | "database user" | "command line") =>
        {
            Repair::sql(format!("alter system set output_plugin_libraries = {}", listed.join(", ")))
                .then("select pg_reload_conf()")
        }
        _ => service::set(facts, setting, "output_plugin_libraries", &listed.join(", ")),
    };
    Finding::failure(name, found, needed, vec![repair])
}

/// B1: a slot's creation waits for each of them, so it is refused while there are any, in whichever database.
fn prepared(facts: &Facts) -> Finding {
    let name = "prepared_transactions";
    let needed = "none: the creation of a slot would wait for them";
    if facts.prepared == 0 {
        return Finding::ok(name, "none", needed);
    }
    let age = facts.prepared_age.unwrap_or_default();
    let count = if facts.prepared == 1 {
        "1 prepared transaction exists".to_owned()
    } else {
        format!("{} prepared transactions exist", facts.prepared)
    };
    let found = format!("{count}, the oldest for {age:.0} s");
    // Their identifiers are the application's words, and are not repeated here.
    let repair = vec![
        Repair::sql(
            "select format('rollback prepared %L', gid) as statement, database, owner, prepared from pg_prepared_xacts order by prepared",
        )
        .then("run each statement in its database, or `commit prepared`, as whoever prepared it meant"),
    ];
    if facts.own_slot {
        return Finding::warning(
            name,
            format!("{found}: a reset is refused until they have ended"),
            needed,
            repair,
        );
    }
    Finding::failure(
        name,
        format!("{found}: the worker's first start is refused until they have ended"),
        needed,
        repair,
    )
}

fn work_mem(facts: &Facts) -> Option<Finding> {
    let name = "logical_decoding_work_mem";
    let setting = facts.settings.get(name)?;
    let kilobytes: i64 = setting.value.parse().ok()?;
    let needed = "64MB or more";
    if kilobytes >= WORK_MEM_KB {
        return Some(Finding::ok(name, setting.shown.clone(), needed));
    }
    let found = format!(
        "{}: transactions that are larger are written to disk once more before they are sent, which costs time, not rows",
        setting.shown
    );
    Some(Finding::warning(name, found, needed, vec![service::set(facts, setting, name, "64MB")]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::facts::Setting;
    use crate::check::finding::Level;

    fn of(facts: &Facts, name: &str) -> Finding {
        let found = judge(facts).into_iter().find(|finding| finding.name == name);
        found.unwrap_or_else(|| panic!("no finding {name}"))
    }

    /// Its level, and the first repair.
    fn seen(facts: &Facts, name: &str) -> (Level, String) {
        let finding = of(facts, name);
        assert_eq!(finding.repair.is_empty(), finding.level == Level::Ok, "{finding:?}");
        (finding.level, finding.repair.first().map(|repair| repair.text.clone()).unwrap_or_default())
    }

    #[test]
    fn a_good_server_has_nothing_to_repair() {
        for finding in judge(&Facts::good()) {
            assert_eq!(finding.level, Level::Ok, "{finding:?}");
        }
    }

    #[test]
    fn each_harmful_setting_is_named_alone_with_its_repair() {
        let cases: [(&str, &str, Level, &str); 13] = [
            ("wal_level", "replica", Level::Failure, "alter system set wal_level = 'logical'"),
            ("wal_level", "minimal", Level::Failure, "alter system set wal_level = 'logical'"),
            (
                "default_transaction_read_only",
                "on",
                Level::Failure,
                "alter system set default_transaction_read_only = 'off'",
            ),
            ("wal_sender_timeout", "0", Level::Warning, "alter system set wal_sender_timeout = '60s'"),
            ("wal_sender_timeout", "2000", Level::Warning, "alter system set wal_sender_timeout = '60s'"),
            ("wal_sender_timeout", "10000", Level::Ok, ""),
            (
                "max_slot_wal_keep_size",
                "512",
                Level::Warning,
                "alter system set max_slot_wal_keep_size = '16GB'",
            ),
            (
                "max_slot_wal_keep_size",
                "0",
                Level::Warning,
                "alter system set max_slot_wal_keep_size = '16GB'",
            ),
            ("max_slot_wal_keep_size", "1024", Level::Ok, ""),
            (
                "idle_replication_slot_timeout",
                "3600",
                Level::Warning,
                "alter system set idle_replication_slot_timeout = '0'",
            ),
            (
                "logical_decoding_work_mem",
                "1024",
                Level::Warning,
                "alter system set logical_decoding_work_mem = '64MB'",
            ),
            ("max_replication_slots", "0", Level::Failure, "alter system set max_replication_slots = '10'"),
            ("max_wal_senders", "1", Level::Warning, "alter system set max_wal_senders = '10'"),
        ];
        for (name, value, level, repair) in cases {
            let facts = Facts::good().with(name, value);
            assert_eq!(seen(&facts, name), (level, repair.to_owned()), "{name} = {value}");
            let others = judge(&facts).into_iter().filter(|finding| finding.name != name);
            for other in others {
                assert_eq!(other.level, Level::Ok, "{name} = {value}: {other:?}");
            }
        }
    }

    #[test]
    fn free_slots_and_walsenders_are_for_the_worker_and_a_reset() {
        for (used, own, level) in [
            (8, false, Level::Ok),
            (9, false, Level::Warning),
            (10, false, Level::Failure),
            (11, false, Level::Failure),
            (9, true, Level::Ok),
            (10, true, Level::Warning),
        ] {
            let facts =
                Facts { slots: used, senders: used, own_slot: own, own_slot_active: own, ..Facts::good() };
            assert_eq!(seen(&facts, "max_replication_slots").0, level, "{used} {own}");
            assert_eq!(seen(&facts, "max_wal_senders").0, level, "{used} {own}");
        }
        // What nobody reads may go first.
        let facts = Facts { slots: 10, idle_slots: vec!["'old'".into()], ..Facts::good() };
        let repair = of(&facts, "max_replication_slots").repair;
        assert_eq!(repair[0].text, "select pg_drop_replication_slot('old')");
        assert_eq!(repair[1].text, "alter system set max_replication_slots = '12'");
    }

    #[test]
    fn prepared_transactions_stop_a_first_start_and_hinder_a_reset() {
        let facts = Facts { prepared: 2, prepared_age: Some(90.4), ..Facts::good() };
        let finding = of(&facts, "prepared_transactions");
        assert_eq!(finding.level, Level::Failure);
        assert!(
            finding.found.starts_with("2 prepared transactions exist, the oldest for 90 s"),
            "{finding:?}"
        );
        assert_eq!(seen(&Facts { own_slot: true, ..facts }, "prepared_transactions").0, Level::Warning);
    }

    #[test]
    fn standby_encoding_and_plugin_are_judged() {
        assert_eq!(seen(&Facts { standby: true, ..Facts::good() }, "primary").0, Level::Failure);
        assert_eq!(seen(&Facts { encoding: "LATIN1".into(), ..Facts::good() }, "encoding").0, Level::Failure);
        let (level, repair) =
            seen(&Facts::good().with("output_plugin_libraries", "test_decoding"), "output_plugin");
        assert_eq!(level, Level::Failure);
        assert_eq!(repair, "alter system set output_plugin_libraries = test_decoding, pgoutput");
        assert_eq!(
            seen(&Facts::good().with("output_plugin_libraries", ""), "output_plugin").1,
            "alter system set output_plugin_libraries = pgoutput"
        );
        let mut facts = Facts::good();
        facts.settings.remove("output_plugin_libraries");
        assert_eq!(seen(&facts, "output_plugin").0, Level::Ok);
    }

    #[test]
    fn a_value_that_waits_for_a_restart_is_said() {
        let mut facts = Facts::good();
        let setting =
            Setting { pending_restart: true, context: "postmaster".into(), ..Setting::plain("replica") };
        facts.settings.put("wal_level", setting);
        let finding = of(&facts, "wal_level");
        assert!(finding.found.contains("waits for a restart"), "{finding:?}");
        assert_eq!(finding.repair[0].then.as_deref(), Some("as a superuser; then restart PostgreSQL"));
    }
}
