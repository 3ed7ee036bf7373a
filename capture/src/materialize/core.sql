-- What every commit of the live stream writes: records of its source transactions (R1, R4), their effects, the scopes that those
-- moved, and the boundary (A1, P7). One statement, because it is one round trip. Caller: materialize::write::core.
-- Parameters: 1 generation, 2-9 source_transaction, 10-21 effect, 22-27 scope, 28 processed, 29 materialized commit,
-- 30 registry generation. {state} is the projected state.
with recorded as (
    insert into tidegate.source_transaction
        (generation, commit_lsn, end_lsn, xid, committed_at, event_count, effect_count, effect_bytes, manifest)
    select $1, t.commit_lsn, t.end_lsn, t.xid, timestamptz '2000-01-01 00:00:00+00' + t.committed * interval '1 microsecond',
           t.event_count, t.effect_count, t.effect_bytes, t.manifest
    from unnest($2::pg_lsn[], $3::pg_lsn[], $4::int8[], $5::int8[], $6::int8[], $7::int8[], $8::int8[], $9::bytea[])
        as t(commit_lsn, end_lsn, xid, committed, event_count, effect_count, effect_bytes, manifest)
), delivered as (
    insert into tidegate.effect
        (generation, scope_id, commit_lsn, event_ordinal, effect_ordinal, op, table_id, key, version, row, schema_version,
         digest_after, count_after)
    select $1, e.*
    from unnest($10::int8[], $11::pg_lsn[], $12::int8[], $13::int4[], $14::int2[], $15::int4[], $16::bytea[], $17::uuid[],
                $18::bytea[], $19::int4[], $20::bytea[], $21::int8[]) as e
), moved as (
    update tidegate_projection.s{state}_scope s
    set row_count = u.row_count, digest = u.digest, tail_commit_lsn = u.commit_lsn, tail_event_ordinal = u.event_ordinal,
        tail_effect_ordinal = u.effect_ordinal
    from unnest($22::int8[], $23::int8[], $24::bytea[], $25::pg_lsn[], $26::int8[], $27::int4[])
        as u(scope_id, row_count, digest, commit_lsn, event_ordinal, effect_ordinal)
    where s.scope_id = u.scope_id
    returning 1
), advanced as (
    update tidegate.progress
    set processed_end_lsn = $28, materialized_commit_lsn = $29, materialized_end_lsn = $28, registry_generation = $30
    where generation = $1 and $28 is not null
    returning 1
)
select (select count(*) from moved), (select count(*) from advanced)
