-- Purpose: one push, one transaction, one round trip. Caller: push/transact.rs. Rides: the primary keys of client and of the
-- application's table, client_mutation (subject, client_id, number), write_fence_pending, write_fence_by_client.
select state, stop, statuses, codes, messages, versions, current
from tidegate.push($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24,
    $25, $26, $27, $28, $29, $30)
