-- Prefix of every statement that reads the stream: what the answer is bound to, read in the same snapshot as the answer.
-- Caller: each statement of the gateway that reads effects, grants or projections. Rides: one-row tables.
with anchor as materialized (
    select p.generation, g.token, g.state_id, p.materialized_commit_lsn as tip, p.registry_generation,
           p.processed_end_lsn as processed, (select r.removed_through from tidegate.retention r where r.generation = p.generation) as removed, (select system_identifier from pg_catalog.pg_control_system()) as system_identifier,
           -- Where history is made, no position beyond this has ever been part of it. A standby cannot say.
           case when not pg_catalog.pg_is_in_recovery() then pg_catalog.pg_current_wal_flush_lsn() end as written,
           ('x' || case when pg_catalog.pg_is_in_recovery()
                        then (select pg_catalog.lpad(pg_catalog.to_hex(timeline_id), 8, '0') from pg_catalog.pg_control_checkpoint())
                        else pg_catalog.substr(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 1, 8)
                   end)::bit(32)::int4 as timeline
    from tidegate.progress p join tidegate.stream_generation g on g.id = p.generation
)
