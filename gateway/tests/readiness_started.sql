-- A stream at work, as a worker leaves it in the tables: generation with its slot, progress, ownership, heartbeat.
insert into tidegate.stream_generation (id, reset_id, state_id, slot_name, consistent_lsn, barrier_end_lsn, system_identifier, timeline, database_oid)
select 1, gen_random_uuid(), 1, s.slot_name, s.confirmed_flush_lsn, s.confirmed_flush_lsn,
    (select system_identifier::text from pg_control_system()), 1, d.oid
from pg_replication_slots s join pg_database d on d.datname = s.database where s.database = current_database();
insert into tidegate.progress (generation, processed_end_lsn, registry_generation)
select 1, greatest(consistent_lsn, pg_current_wal_lsn()), (select max(id) from tidegate.registry_generation) from tidegate.stream_generation;
insert into tidegate.registry_activation (stream_generation, registry_generation) select 1, registry_generation from tidegate.progress;
insert into tidegate.worker_heartbeat (epoch, beat_at, state, since, registry_generation)
select epoch, clock_timestamp(), 'streaming', clock_timestamp(), 1 from tidegate.worker;
