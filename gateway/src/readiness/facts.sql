-- Purpose: everything single-valued that readiness judges, as of one statement; always one row. Caller: readiness/observe.rs.
-- Slot and WAL positions are not part of its snapshot: they are read live, and may be newer than the tables.
select
    current_database()::text as database,
    pg_is_in_recovery() as standby,
    current_setting('wal_level') as wal_level,
    exists (select from tidegate.relation t where t.state <> 'removed') as registered,
    extract(epoch from clock_timestamp())::float8 as now,
    g.id is not null as started,
    g.system_identifier = (select c.system_identifier::text from pg_control_system() c) as same_cluster,
    g.database_oid = (select d.oid from pg_database d where d.datname = current_database()) as same_database,
    g.consistent_lsn::text as consistent,
    p.processed_end_lsn::text as processed,
    p.acknowledged_end_lsn::text as acknowledged,
    p.materialized_end_lsn::text as materialized_end,
    p.materialized_commit_lsn::text as materialized_commit,
    p.registry_generation as registry,
    (select s.snapshot::text from tidegate.registry_generation s where s.id = p.registry_generation) as snapshot,
    exists (select from tidegate.registry_activation a
            where a.stream_generation = p.generation and a.registry_generation = p.registry_generation) as registry_activated,
    w.epoch as worker_epoch,
    h.epoch as beat_epoch,
    extract(epoch from h.beat_at)::float8 as beat_at,
    h.state as beat_state,
    left(h.reason, 200) as beat_reason,
    extract(epoch from h.since)::float8 as beat_since,
    h.processed_end_lsn::text as beat_processed,
    h.materialized_commit_lsn::text as beat_materialized_commit,
    h.registry_generation as beat_registry,
    extract(epoch from h.oldest_pending_commit_at)::float8 as oldest_pending,
    r.slot_name is not null as slot_exists,
    r.plugin::text as slot_plugin,
    r.slot_type as slot_type,
    r.database = current_database() as slot_here,
    r.temporary as slot_temporary,
    r.wal_status as slot_wal_status,
    r.confirmed_flush_lsn::text as slot_confirmed,
    r.restart_lsn::text as slot_restart,
    case when not pg_is_in_recovery() then pg_current_wal_lsn()::text end as wal,
    b.failure_class as poison_class,
    b.commit_lsn::text as poison_at,
    b.status as poison_status,
    extract(epoch from b.first_at)::float8 as poison_since,
    (select format('%I.%I', q.schema_name, q.table_name) from tidegate.relation q where q.relation_id = b.relation_id) as poison_relation
from (select) one
left join tidegate.progress p on true
left join tidegate.stream_generation g on g.id = p.generation
left join tidegate.worker w on true
left join tidegate.worker_heartbeat h on true
left join pg_replication_slots r on r.slot_name = g.slot_name
left join tidegate.poison b on b.status in ('active', 'retrying')
