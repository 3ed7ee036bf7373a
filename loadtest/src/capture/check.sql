-- What `loadtest capture` counts after everything. Caller: ground::check. Parameter: a transaction id before the first backlog.
-- {state} is the projected state, {relation} the table's relation.
with recorded as (
    select count(*) as transactions, coalesce(sum(event_count), 0)::bigint as changes
    from tidegate.source_transaction where xid > $1 and event_count > 0
), source as (
    select '\x01'::bytea || int8send(t.id # (-9223372036854775808)) as key_index,
           coalesce(v.version, '00000000-0000-0000-0000-000000000000') as version
    from loadtest.change t left join tidegate.row_version_{relation} v on v.key = t.id and v.alive
), wrong_rows as (
    select count(*) as n
    from source s full join tidegate_projection.s{state}_p{relation} p on p.key_index = s.key_index
    where s.version is distinct from p.version
), wrong_scopes as (
    select count(*) as n
    from tidegate_projection.s{state}_scope s
    left join (select e.scope_id, count(*) as row_count from tidegate_projection.s{state}_scope_row e group by e.scope_id) e
        on e.scope_id = s.scope_id
    left join lateral (select f.digest_after, f.count_after from tidegate.effect f where f.scope_id = s.scope_id
        order by f.commit_lsn desc, f.event_ordinal desc, f.effect_ordinal desc limit 1) f on true
    where s.row_count <> coalesce(e.row_count, 0)
       or s.digest <> coalesce(f.digest_after, s.digest) or s.row_count <> coalesce(f.count_after, s.row_count)
)
select recorded.transactions, recorded.changes, wrong_rows.n, wrong_scopes.n, (select count(*) from tidegate.poison)
from recorded, wrong_rows, wrong_scopes
