-- Creates the generation of a caught-up candidate and points progress at it: both boundaries at the barrier's end, the candidate's
-- consistent point as the lower bound (B9). A first start must not find a stream; a reset replaces the one there is.
-- Caller: baseline::activate.
with candidate as (
    select reset_id, kind, state_id, slot_name, consistent_lsn, registry_generation
    from tidegate.stream_reset where reset_id = $1 and phase = 'verified'
), created as (
    insert into tidegate.stream_generation
        (id, reset_id, state_id, slot_name, consistent_lsn, barrier_end_lsn, system_identifier, timeline, database_oid)
    select (select coalesce(max(id), 0) + 1 from tidegate.stream_generation), c.reset_id, c.state_id, c.slot_name, c.consistent_lsn,
           $5, $2, $3, $4::int8::oid
    from candidate c
    where c.kind = 'reset' or not exists (select from tidegate.progress)
    returning id
), activated as (
    insert into tidegate.registry_activation (stream_generation, registry_generation)
    select created.id, candidate.registry_generation from created, candidate
), pointed as (
    insert into tidegate.progress (generation, processed_end_lsn, acknowledged_end_lsn, registry_generation)
    select created.id, $5, $5, candidate.registry_generation from created, candidate
    on conflict (singleton) do update
    set generation = excluded.generation, processed_end_lsn = excluded.processed_end_lsn,
        acknowledged_end_lsn = excluded.acknowledged_end_lsn, registry_generation = excluded.registry_generation,
        materialized_commit_lsn = null, materialized_end_lsn = null
)
select id from created
