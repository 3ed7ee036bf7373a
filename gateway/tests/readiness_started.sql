-- A stream at work, as a worker leaves it in the tables: generation with its slot, progress, ownership, heartbeat.
do $$
declare
    slot name := 'tidegate_' || substr(md5(current_database()), 1, 8);
    consistent pg_lsn;
begin
    consistent := (select lsn from pg_create_logical_replication_slot(slot, 'pgoutput'));
    insert into tidegate.stream_generation (id, reset_id, state_id, slot_name, consistent_lsn, barrier_end_lsn, system_identifier, timeline, database_oid)
    select 1, gen_random_uuid(), 1, slot, consistent, consistent, (select system_identifier::text from pg_control_system()), 1, oid
    from pg_database where datname = current_database();
    insert into tidegate.progress (generation, processed_end_lsn, registry_generation)
    select 1, greatest(consistent, pg_current_wal_lsn()), max(id) from tidegate.registry_generation;
    insert into tidegate.registry_activation (stream_generation, registry_generation) select 1, registry_generation from tidegate.progress;
    insert into tidegate.worker_heartbeat (epoch, beat_at, state, since, registry_generation)
    select epoch, clock_timestamp(), 'streaming', clock_timestamp(), 1 from tidegate.worker;
end $$;
