-- The anchor as a row of the common shape: see row.rs.
select 0::int4 as kind, pg_catalog.pg_lsn_send(tip) as lsn, registry_generation::int8 as event, timeline as effect,
       system_identifier as scope, null::int2 as op, state_id as table_id, pg_catalog.pg_lsn_send(processed) as key,
       token as version, pg_catalog.pg_lsn_send(written) as row, generation as sv, pg_catalog.pg_lsn_send(removed) as digest, null::int8 as count, null::text as text1, null::text as text2
from anchor
