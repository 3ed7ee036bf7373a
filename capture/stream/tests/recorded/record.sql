-- Records pg<version>.txt: the registry, the frames, and what tables and row versions say at the end.
-- Run against an empty database with Tidegate's migrations applied, on a server with wal_level = logical:
--   psql -X -q -At -v ON_ERROR_STOP=1 -f record.sql > pg18.txt

set datestyle = iso;
set intervalstyle = iso_8601;
set timezone = utc;
set bytea_output = hex;
set extra_float_digits = 1;
set client_min_messages = warning;

\o /dev/null
\ir tables.sql
select pg_create_logical_replication_slot('recording', 'pgoutput');
select max(id) as start from tidegate.registry_generation \gset
\ir changes.sql
\o

select '# PostgreSQL ' || split_part(version(), ' ', 2) || ', recorded by record.sql.';
select 'start ' || :start;
select 'registry ' || snapshot::text from tidegate.registry_generation order by id;
select 'frame ' || encode(data, 'hex') from pg_logical_slot_peek_binary_changes('recording', null, null,
    'proto_version', '1', 'publication_names', 'tidegate', 'messages', 'true');
-- Per relation: its rows in text form, captured columns only, each with its row version.
select format($q$select 'row %1$s ' || v.version || ' ' || jsonb_build_array(%2$s) from %3$I.%4$I x
        join tidegate.row_version_%1$s v on v.key::text = tidegate.version_key(x.%5$I::text) and v.alive order by x.%5$I::text collate "C"$q$,
    r.relation_id,
    (select string_agg(format($c$case when %1$I is not null then format('%%s', %1$I) end$c$, c ->> 'name'), ', ' order by n)
     from jsonb_array_elements(r.resolved -> 'columns') with ordinality as e (c, n)),
    r.schema_name, r.table_name, r.key_column)
from tidegate.relation r order by r.relation_id \gexec

select pg_drop_replication_slot('recording') \g /dev/null
