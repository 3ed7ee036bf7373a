-- What many scopes are now. Scopes that do not exist have no row.
-- Caller: EffectLog::read_facts. Rides: the unique index on name_hash.
-- $1 SHA-256 of the names.
{anchor_row}
union all
select 7, pg_catalog.pg_lsn_send(s.tail_commit_lsn), s.tail_event_ordinal, s.tail_effect_ordinal, s.scope_id, null, null, s.name_hash,
       null, null, null, s.digest, s.row_count, null, null
from tidegate_projection.s{state}_scope s where s.name_hash = any($1::bytea[])
union all
select 8, pg_catalog.pg_lsn_send(s.floor_commit_lsn), s.floor_event_ordinal, s.floor_effect_ordinal, s.scope_id, null, null, s.name_hash,
       null, null, null, s.floor_digest, s.floor_row_count, null, null
from tidegate_projection.s{state}_scope s where s.name_hash = any($1::bytea[]) and s.floor_commit_lsn is not null
order by kind, scope
