-- What became of mutations of one client that may have come round before the session was registered (V6).
-- Caller: a session's Settle. Rides: client's key, client_mutation's unique key, write_fence_by_client.
-- $1 subject, $2 client, $3 numbers, $4 stream generation.
select n.number,
       m.status,
       n.number <= coalesce(c.settled, 0) as settled,
       f.fences,
       f.pending,
       f.materialized
from pg_catalog.unnest($3::int8[]) as n(number)
left join tidegate.client c on c.subject = $1 and c.client_id = $2
left join tidegate.client_mutation m on m.subject = $1 and m.client_id = $2 and m.number = n.number
left join lateral (
    select pg_catalog.count(*) as fences,
           pg_catalog.count(*) filter (where w.materialized_commit_lsn is null and w.covered_by is null) as pending,
           pg_catalog.max(w.materialized_commit_lsn) filter (where w.generation = $4)::text as materialized
    from tidegate.write_fence w where w.subject = $1 and w.client_id = $2 and w.number = n.number
) f on true
