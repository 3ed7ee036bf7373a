-- The active generation and its durable boundaries. Caller: progress::read, at each start of a session.
-- Rides: the singleton primary key of progress, the primary key of stream_generation.
select p.generation, g.token, g.state_id, g.slot_name::text, g.consistent_lsn, g.system_identifier, g.timeline,
       g.database_oid::int8 as database_oid, p.processed_end_lsn, p.acknowledged_end_lsn, p.materialized_commit_lsn,
       p.registry_generation
from tidegate.progress p
join tidegate.stream_generation g on g.id = p.generation
